"""What all jobs of a run share: what main made before any process ran.

Each job builds its objects in the process that runs it. It reports to main through counters and a
channel, and never waits for main.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.config.kept_code import as_it_began
from manyhands.config.plans import Plan
from manyhands.memory import queue
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles.counters import DRAWN, STEPS, UPDATES
from manyhands.roles.kept_state import KeptState
from manyhands.roles.learner import Learner
from manyhands.roles.making import MakeEnv, MakeTorso
from manyhands.roles.published import PublishedWeights
from manyhands.types import (
    Algorithm,
    Batch,
    Budget,
    Channel,
    Demand,
    EnvSpec,
    Failure,
    Ledger,
    Rank,
    State,
    Stream,
    Table,
    restored,
)


@dataclass
class Shared:
    """What main made, the same for all processes."""

    plan: Plan
    spec: EnvSpec
    in_step: bool  # whether all learners make the same updates at the same time
    counters: Table  # [ranks, FIELDS]; each rank writes its own row
    budget: Budget  # of agent steps
    ranks: int
    lr_scale: Table  # one number, which main writes
    episodes: Channel
    shared_lanes: SharedLanes | queue.Queues | None  # None: rollouts, which end with their worker
    imagined: Stream | None  # of learners that imagine
    published: PublishedWeights | None
    acted: Ledger | None  # age of the weights that actors acted with, in updates
    kept_state: KeptState | None
    buffers: KeptState | None  # of the first learner's network, if it has some
    threads: int
    since: int  # agent steps of the run before this start, which seeds depend on
    make_env: MakeEnv | None
    network: MakeTorso | None
    on_nonfinite: Callable[[Batch], None]
    saved: Mapping[int, State]  # by rank: its state in the checkpoint that the run resumes from
    kept_queues: bool  # whether rollouts that waited were restored

    def scaled_lr(self, lr: float) -> float:
        return lr * float(self.lr_scale.rows()[0, 0])

    def own_state(self, rank: Rank) -> State | None:
        """The state that this process resumes with. A restarted one has lost its own."""
        return None if rank.incarnation else self.saved.get(rank.index)

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Around what restores a state: one that does not fit is refused."""
        try:
            yield
        except restored.UNFIT as error:
            raise unfit(error) from error

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, maybe long after the run began: uses the code kept in its folder."""
        self.__dict__.update(state)
        self.plan = as_it_began(self.plan)

    def total(self, field: int, ranks: range | None = None) -> int:
        """The sum of a counter over all ranks, or over these."""
        counted = self.counters.rows()
        if len(counted) == 1:  # a sum costs more than the rest
            return int(counted[0, field])
        rows = slice(None) if ranks is None else slice(ranks.start, ranks.stop)
        return int(counted[rows, field].sum())

    def steps_and_updates(self) -> tuple[int, int]:
        """Of all ranks, as one look at the counters has them."""
        counted = self.counters.rows()
        return int(counted[:, STEPS].sum()), int(counted[:, UPDATES].sum())

    def drawn(self, learners: range) -> int:
        """Batches drawn by these learners.

        Learners in step share one count. So one that lost updates when it was killed does not
        stall the actors.
        """
        if not self.in_step:
            return self.total(DRAWN, learners)
        return len(learners) * int(self.counters.rows()[list(learners), DRAWN].max())

    def step_limit(self) -> float:
        top = self.plan.top
        return np.inf if top.minutes else top.steps

    def seeds(self, rank: Rank) -> np.random.SeedSequence:
        """Rank 0 has the seeds of a single worker at its first start."""
        seed = self.plan.top.seed
        if rank.index == rank.incarnation == self.since == 0:
            return np.random.SeedSequence(seed)
        return np.random.SeedSequence((seed, rank.index, rank.incarnation, self.since))

    def _catch_up(self, learner: Learner, rank: Rank) -> None:
        """Takes the newest parameters and, unless it is the first start, the kept state."""
        if self.kept_state is not None and self.takes_over(rank):
            state = self.kept_state.get()
            if state:
                learner.algorithm.restore(state)
        learner.catch_up()

    def _share_buffers(self, learner: Learner, *, first: bool) -> None:
        """All start with the buffers of the first learner's network and take them at every pull.

        Learners in step keep their own, since a run could not repeat if timing chose them.
        """
        shared, own = self.buffers, learner.model.buffers
        if shared is None:
            return
        own.load(shared.get())
        if first:
            learner.on_caught_up = lambda: shared.put(own.arrays())  # a mean follows the weights
        elif not self.in_step:
            learner.on_pulled = lambda: own.load(shared.get())

    def _keep_state(self, learner: Learner) -> None:
        if self.kept_state is not None:
            self.kept_state.put(learner.algorithm.state())

    def _published(self) -> PublishedWeights:
        assert self.published is not None  # main makes it where actors and learners are separate
        return self.published

    def takes_over(self, rank: Rank) -> bool:
        """Whether this rank replaces a process, or the run is resumed."""
        return bool(rank.incarnation or self.since)


def unfit(error: Exception) -> Failure:
    return Failure(
        f"the checkpoint does not fit this run: {type(error).__name__}: {error}",
        "resume with the configuration that it was saved with",
    )


def replay_demand(algorithm: Algorithm) -> Demand:
    """The demand of an algorithm that learns from a replay."""
    assert isinstance(algorithm.demand, Demand)
    return algorithm.demand
