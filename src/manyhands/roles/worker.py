"""A worker: an actor and a learner in one loop. Here algorithm, memory and strategy meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from manyhands import envs, optim
from manyhands.config.plans import Plan
from manyhands.roles.making import (
    MakeEnv,
    MakeTorso,
    make_actor,
    make_learner,
    make_memory,
    memory_needed,
    seeded_algorithm,
)
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import (
    AnyDemand,
    Batch,
    Demand,
    Parameters,
    Rank,
    State,
)


class Worker:
    """An actor and a learner, built from a plan in the process that runs them."""

    def __init__(
        self,
        plan: Plan,
        *,
        threads: int,
        join: Callable[[optim.FlatModel], Parameters],
        seeds: np.random.SeedSequence,
        rank: tuple[int, int] = (0, 1),
        replay_lanes: Any = None,
        make_env: MakeEnv | None = None,
        network: MakeTorso | None = None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`rank`: the index of this worker and how many there are. They share the warm-up steps.
        `tell` is called before each part that takes long.
        """
        init, env, act, draw = seeds.spawn(4)
        lanes, workers = plan.top.envs_per_worker, rank[1]
        tell(f"making {lanes} environment(s)")
        self.env = envs.make(plan.env, lanes=lanes, seed=env, threads=threads, factory=make_env)
        self.algorithm = seeded_algorithm(plan, self.env.spec, network, init)
        self.demand = worker_share(self.algorithm.demand, workers)
        self.preflight, self.memory_bytes = "", 0
        self._make_memory(plan, workers, replay_lanes, np.random.default_rng(draw))
        self.model = optim.FlatModel(self.algorithm.modules)
        self.stopwatch = stopwatch = Stopwatch()
        rng = np.random.default_rng(act)
        tell("resetting them")
        self.actor = make_actor(
            plan, self.env, self.algorithm, self.memory, rng=rng, stopwatch=stopwatch, rank=rank
        )
        self.learner = make_learner(
            plan, self.algorithm, self.memory, join(self.model), self.model,
            demand=self.demand, stopwatch=stopwatch, on_nonfinite=on_nonfinite,
        )  # fmt: skip

    def _make_memory(
        self, plan: Plan, workers: int, replay_lanes: Any, rng: np.random.Generator
    ) -> None:
        """With many workers main has checked that it fits, before it allocated what they share."""
        spec, algorithm = self.env.spec, self.algorithm
        if workers == 1 and replay_lanes is None:
            self.preflight, self.memory_bytes = memory_needed(plan, spec, algorithm)
        self.memory = make_memory(
            plan,
            spec,
            algorithm,
            rng,
            demand=self.demand,
            workers=workers,
            replay_lanes=replay_lanes,
        )

    def turn(self, elsewhere: int = 0) -> None:
        """One step of the actor, and the updates due. `elsewhere`: agent steps of other workers."""
        self.stopwatch.lap("idle")
        self.actor.step(elsewhere)
        self.learner.step(self.actor.total_steps)

    def run(self, rank: Rank) -> Iterator[None]:  # noqa: ARG002
        self.stopwatch.begin()
        while True:
            self.turn()
            yield

    def state(self, *, fresh_episodes: bool = False) -> State:
        actor = self.actor.state(fresh_episodes=fresh_episodes)
        return {"actor": actor, "learner": self.learner.state()}

    def restore(self, state: State, replay: State | None) -> None:
        self.learner.restore(state["learner"])
        self.actor.restore(state["actor"])
        if state["memory"].get("steps_seen", 0) > self.actor.agent_steps:
            raise ValueError("the memory has seen more steps than were taken")
        self.memory.restore({**state["memory"], "lanes": replay})


def worker_share(demand: AnyDemand, workers: int) -> AnyDemand:
    """One worker's share of the demand: the warm-up is a total over all workers."""
    if isinstance(demand, Demand):
        return replace(demand, warmup_steps=demand.warmup_steps // workers)
    return demand
