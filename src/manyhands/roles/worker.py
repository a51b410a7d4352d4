"""A worker: an actor and a learner in one loop. Here algorithm, memory and strategy meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from manyhands import optim
from manyhands.config.plans import Plan
from manyhands.roles.making import (
    MakeTorso,
    make_actor,
    make_learner,
    make_memory,
    seeded_algorithm,
)
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import (
    AnyDemand,
    Batch,
    Demand,
    Environment,
    Parameters,
    State,
)


class Worker:
    """An actor and a learner, built from a plan in the process that runs them."""

    def __init__(
        self,
        plan: Plan,
        env: Environment,
        *,
        join: Callable[[optim.FlatModel], Parameters],
        seeds: np.random.SeedSequence,
        rank: tuple[int, int] = (0, 1),
        replay_lanes: Any = None,
        network: MakeTorso | None = None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """`env`: with the seed that `env_seed` gives. `rank`: the index of this worker and how many
        there are. They share the warm-up steps.
        """
        init, _, act, draw = seeds.spawn(4)
        self.env, self._turn_ended = env, True
        self.algorithm = seeded_algorithm(plan, env.spec, network, init)
        self.demand = worker_share(self.algorithm.demand, rank[1])
        self.memory = make_memory(
            plan, env.spec, self.algorithm, np.random.default_rng(draw),
            demand=self.demand, workers=rank[1], replay_lanes=replay_lanes,
        )  # fmt: skip
        self.model = optim.FlatModel(self.algorithm.modules)
        self.stopwatch = stopwatch = Stopwatch()
        rng = np.random.default_rng(act)
        self.actor = make_actor(
            plan, self.env, self.algorithm, self.memory, rng=rng, stopwatch=stopwatch, rank=rank
        )
        self.learner = make_learner(
            plan, self.algorithm, self.memory, join(self.model), self.model,
            demand=self.demand, stopwatch=stopwatch, on_nonfinite=on_nonfinite,
        )  # fmt: skip

    def turn(self, elsewhere: int = 0) -> None:
        """One step of the actor, and the updates due. `elsewhere`: agent steps of other workers."""
        self._turn_ended = False
        self.actor.step(elsewhere)
        self.learner.step(self.actor.total_steps)
        self._turn_ended = True

    def state(self) -> State:
        """If a turn was interrupted by an error, the running episodes are given up."""
        actor = self.actor.state(fresh_episodes=not self._turn_ended)
        return {
            "actor": actor,
            "learner": self.learner.state(),
            "memory": self.memory.state(),
        }

    def restore(self, state: State) -> None:
        """After the rows of a replay were restored."""
        self.learner.restore(state["learner"])
        self.actor.restore(state["actor"])
        self.memory.restore(state["memory"])


def env_seed(seeds: np.random.SeedSequence) -> np.random.SeedSequence:
    """The seed of the environments of a worker with these seeds."""
    return np.random.SeedSequence(seeds.entropy, spawn_key=seeds.spawn_key).spawn(4)[1]


def worker_share(demand: AnyDemand, workers: int) -> AnyDemand:
    """One worker's share of the demand: the warm-up is a total over all workers."""
    if isinstance(demand, Demand):
        return replace(demand, warmup_steps=demand.warmup_steps // workers)
    return demand
