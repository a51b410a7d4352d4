"""The crew of a run as main sees it: one worker in main's own process, or many in others.

`Progress` and `Run` ask the same things of both: how far they are, how the episodes went, where
the time goes, and for the parameters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from manyhands import optim, worker
from manyhands.config import Plan
from manyhands.metrics import Scores
from manyhands.types import (
    Algorithm,
    Array,
    Backend,
    Batch,
    Break,
    EnvSpec,
    Fault,
    Job,
    Post,
    State,
    Strategy,
)
from manyhands.worker import MakeEnv, MakeTorso, Worker


class Crew(Protocol):
    spec: EnvSpec
    algorithm: Algorithm  # main's own copy, for evaluation
    model: optim.FlatModel  # its parameters, the newest within `newest`
    scores: Scores
    preflight: str
    memory_bytes: int

    @property
    def agent_steps(self) -> int: ...

    @property
    def updates(self) -> int: ...  # gradients applied to the shared parameters

    @property
    def gradients(self) -> int: ...  # computed, whatever became of them

    @property
    def caught_up(self) -> bool: ...  # what the steps so far pay for is learned

    def jobs(self) -> list[Job]: ...

    def look(self) -> None:
        """Takes in what came since the last look."""

    def newest(self) -> AbstractContextManager[None]:
        """Within it main's copy of the parameters is the newest."""

    def begin(self) -> None: ...  # the clock

    def rest(self) -> None: ...  # what main did meanwhile was not training

    def note(self, fault: Fault) -> None: ...

    def take_breaks(self) -> list[Fault]: ...  # environments that broke and were made anew

    def faults(self) -> dict[str, int]: ...

    def time_split(self) -> dict[str, dict[str, float]]: ...

    def memory_fill(self) -> float | None: ...

    def diagnostics(self) -> Mapping[str, float]: ...

    def staleness(self) -> dict[str, float]: ...

    def staff(self) -> list[dict[str, Any]]: ...

    def parked(self) -> AbstractContextManager[None]: ...  # around a checkpoint

    def state(self, *, fresh_episodes: bool = False) -> State: ...

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None: ...

    def close(self) -> None: ...


def staleness_of(strategy: Strategy) -> dict[str, float]:
    mean, late, dropped = strategy.ledger.staleness()
    return {"mean": mean, "p95": late, "dropped": dropped}


def restore_strategy(strategy: Strategy, model: optim.FlatModel, state: State) -> None:
    strategy.restore(model.vector.clone(), state["strategy"])
    if "ledger" in state:
        strategy.ledger.restore(state["ledger"])


def diagnostics_of(strategy: Strategy) -> Mapping[str, float]:
    """What a strategy has to say beside staleness, if anything."""
    say: Callable[[], Mapping[str, float]] = getattr(strategy, "diagnostics", dict)
    return say()


def fault_of(who: Post, found: Break) -> Fault:
    return Fault(time.time(), who, found.cause, "environment made anew", found.detail)


class Solo:
    """One worker, here. Its objects are at hand, so a checkpoint is exact."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        threads: int,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        on_nonfinite: Callable[[Batch], None],
    ) -> None:
        def join(model: optim.FlatModel) -> Any:
            self.strategy = worker.found(plan, backend, model, 1)
            return self.strategy.join(model, 0)

        self.worker = Worker(
            plan,
            threads=threads,
            join=join,
            seeds=np.random.SeedSequence(plan.top.seed),
            make_env=make_env,
            network=network,
            on_nonfinite=on_nonfinite,
        )
        self.spec, self.algorithm = self.worker.env.spec, self.worker.algorithm
        self.model, self.scores = self.worker.model, self.worker.actor.scores
        self.preflight, self.memory_bytes = self.worker.preflight, self.worker.memory_bytes

    @property
    def agent_steps(self) -> int:
        return self.worker.actor.agent_steps

    @property
    def updates(self) -> int:
        return self.strategy.version()

    @property
    def gradients(self) -> int:
        learner = self.worker.learner
        return learner.updates + learner.nonfinite_skipped

    @property
    def caught_up(self) -> bool:
        """Every turn ends with that."""
        return True

    def jobs(self) -> list[Job]:
        return [Job(self.worker.run)]

    def look(self) -> None:
        """Everything is here already."""

    @contextmanager
    def newest(self) -> Iterator[None]:
        """A strategy may have other parameters than its worker computes with; those come back."""
        newest, model = self.strategy.newest(), self.model
        if newest.data_ptr() == model.vector.data_ptr():
            yield
            return
        own = model.vector.clone()
        model.overwrite(newest)
        try:
            yield
        finally:
            model.overwrite(own)

    def begin(self) -> None:
        self.worker.laps.begin()

    def rest(self) -> None:
        self.worker.laps.lap("other")

    def note(self, fault: Fault) -> None:
        """In this process an error is an exception."""

    def take_breaks(self) -> list[Fault]:
        if not self.worker.actor.breaks:
            return []
        me = Post("worker", 0, 0, os.getpid())
        return [fault_of(me, found) for found in self.worker.actor.take_breaks()]

    def faults(self) -> dict[str, int]:
        skipped = self.worker.learner.nonfinite_skipped
        return {"restarts": 0, "nonfinite_skipped": skipped, "torn_rows": 0}

    def time_split(self) -> dict[str, dict[str, float]]:
        return {"worker": dict(self.worker.laps.seconds)}

    def memory_fill(self) -> float | None:
        """None: a memory that keeps nothing for long."""
        kept: Any = self.worker.memory
        capacity = getattr(kept, "capacity", 0)
        return kept.filled / capacity if capacity else None

    def diagnostics(self) -> Mapping[str, float]:
        return {**self.worker.learner.diagnostics(), **diagnostics_of(self.strategy)}

    def staleness(self) -> dict[str, float]:
        return staleness_of(self.strategy)

    def staff(self) -> list[dict[str, Any]]:
        return [
            {
                "id": 0,
                "role": "worker",
                "pid": os.getpid(),
                "incarnation": 0,
                "agent_steps": self.agent_steps,
            }
        ]

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Main has the floor: nobody else runs."""
        yield

    def state(self, *, fresh_episodes: bool = False) -> State:
        own = self.worker.state(fresh_episodes=fresh_episodes)
        kept = self.worker.memory.state()
        return {
            **own,
            "memory": kept,
            "strategy": self.strategy.state(),
            "ledger": self.strategy.ledger.state(),
            "laps": dict(self.worker.laps.seconds),
        }

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None:
        self.model.load(weights)
        restore_strategy(self.strategy, self.model, state)
        self.worker.restore(state, replay)
        self.worker.laps.seconds.update(state["laps"])

    def close(self) -> None:
        self.worker.env.close()
