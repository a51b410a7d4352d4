"""A crew of many: workers in processes of their own, seen from main by counters and a channel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from manyhands import envs, memory, optim, worker
from manyhands.config import Plan
from manyhands.crew import fault_of, staleness_of
from manyhands.metrics import PARTS_OF_TIME, Episode, Scores
from manyhands.types import (
    Array,
    Backend,
    Batch,
    Break,
    Channel,
    EnvSpec,
    Failure,
    Fault,
    Job,
    Post,
    Seat,
    State,
    Strategy,
)
from manyhands.worker import MakeEnv, MakeTorso, Worker

EPISODES_WAITING = 4096  # of each worker, until main looks; more are lost, their steps counted
PARKING_S = 30.0
FIELDS = ("agent_steps", "updates", "nonfinite", "filled", "capacity", *PARTS_OF_TIME)


@dataclass
class Member:
    """A worker's job: it builds itself where it runs, and tells main by counters and a channel."""

    plan: Plan
    strategy: Strategy
    counters: Array  # [workers, FIELDS]; one writer a row
    episodes: Channel
    threads: int
    since: int  # agent steps of the run before this start: another start, other seeds
    make_env: MakeEnv | None
    network: MakeTorso | None
    on_nonfinite: Callable[[Batch], None]

    def __call__(self, seat: Seat) -> Iterator[None]:
        hands = len(self.counters)
        worker.set_threads(self.threads)
        made = Worker(
            self.plan,
            threads=self.threads,
            join=lambda model: self.strategy.join(model, seat.index),
            seeds=seeds_of(self.plan.top.seed, seat, self.since),
            hands=hands,
            make_env=self.make_env,
            network=self.network,
            on_nonfinite=self.on_nonfinite,
        )
        if seat.index or seat.incarnation or self.since:
            made.learner.catch_up()
        row = self.counters[seat.index]
        before = row.copy()  # of those who sat here before
        steps = self.plan.top.steps if not self.plan.top.minutes else np.inf
        made.laps.begin()
        while self.counters[:, 0].sum() < steps:
            made.actor.elsewhere = int(self.counters[:, 0].sum()) - made.actor.agent_steps
            made.turn()
            self._tell(made, row, before)
            for found in made.actor.take_breaks():
                me = (seat.role, seat.index, seat.incarnation, os.getpid())
                self.episodes.put({"break": list(found), "who": me})
            yield
        made.env.close()

    def _tell(self, made: Worker, row: Array, before: Array) -> None:
        kept: Any = made.memory
        own = [made.actor.agent_steps, made.learner.updates, made.learner.nonfinite_skipped]
        row[:3] = before[:3] + own
        row[3:5] = kept.filled, kept.capacity
        row[5:] = before[5:] + list(made.laps.seconds.values())
        for episode in made.actor.scores.take_fresh():
            self.episodes.put({"episode": list(episode)})
        newest = made.learner.diagnostics_now_and_then()
        if newest:
            self.episodes.put({"diagnostics": dict(newest)})


def seeds_of(seed: int, seat: Seat, since: int) -> np.random.SeedSequence:
    """The first worker's first start is seeded as a worker alone would be."""
    if seat.index == seat.incarnation == since == 0:
        return np.random.SeedSequence(seed)
    return np.random.SeedSequence((seed, seat.index, seat.incarnation, since))


class Team:
    """Many workers in processes of their own. Main has the strategy, counters and a channel."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        threads: int,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self.plan, self.backend, self.threads = plan, backend, threads
        self._make_env, self._network, self._on_nonfinite = make_env, network, on_nonfinite
        self._breaks: list[Fault] = []
        hands = plan.top.workers
        self.spec = _spec(plan, make_env)
        init = np.random.SeedSequence(plan.top.seed).spawn(1)[0]
        self.algorithm = worker.seeded_algorithm(plan, self.spec, network, init)
        self.model = optim.FlatModel(self.algorithm.modules)
        self.strategy = worker.found(plan, backend, self.model, hands)
        self.scores = Scores(1)
        self.preflight, self.memory_bytes = self._preflight(hands)
        self.restarts = 0
        self._began_s, self._before_s = perf_counter(), 0.0
        self._since = 0
        self._newest: dict[str, float] = {}
        self._counters = backend.allocate((hands, len(FIELDS)), np.dtype(np.float64))
        self._channel = backend.channel(EPISODES_WAITING)

    def _preflight(self, hands: int) -> tuple[str, int]:
        config, demand = self.plan["memory"], self.algorithm.demand
        rows = memory.capacity_of(config, demand, self.spec)
        rows *= 1 if rows == config.capacity else hands
        kind = memory.kind_of(config, demand)
        needed = memory.bytes_needed(self.spec, rows, self.algorithm.remembers, kind)
        return memory.preflight(needed, capacity=rows), needed

    @property
    def agent_steps(self) -> int:
        return int(self._counters[:, 0].sum())

    @property
    def updates(self) -> int:
        return int(self._counters[:, 1].sum())

    def jobs(self) -> list[Job]:
        member = Member(
            self.plan,
            self.strategy,
            self._counters,
            self._channel,
            self.threads,
            self._since,
            self._make_env,
            self._network,
            self._on_nonfinite,
        )
        return [Job(member, threads=self.threads) for _ in range(len(self._counters))]

    def look(self) -> None:
        for item in self._channel.drain():
            if "episode" in item:
                score, length, steps = item["episode"]
                self.scores.ended(Episode(float(score), int(length), int(steps)))
            elif "break" in item:
                self._breaks.append(fault_of(Post(*item["who"]), Break(*item["break"])))
            else:
                self._newest = item["diagnostics"]

    def refresh(self) -> None:
        self.model.vector.copy_(self.strategy.newest())

    def begin(self) -> None:
        """Every worker has its own clock; what it has not counted yet is ours to tell."""
        self._began_s = perf_counter()

    def rest(self) -> None:
        """Workers go on while main does something else."""

    def note(self, fault: Fault) -> None:
        self.restarts += fault.action.startswith("restarted")

    def take_breaks(self) -> list[Fault]:
        breaks, self._breaks = self._breaks, []
        return breaks

    def faults(self) -> dict[str, int]:
        skipped = int(self._counters[:, 2].sum())
        return {"restarts": self.restarts, "nonfinite_skipped": skipped, "torn_rows": 0}

    def time_split(self) -> dict[str, dict[str, float]]:
        """What no worker counted is the time it takes to start, to be followed and to leave."""
        seconds = self._counters[:, 5:].sum(0)
        split = dict(zip(PARTS_OF_TIME, map(float, seconds), strict=True))
        split["other"] += max(0.0, len(self._counters) * self._elapsed_s() - float(seconds.sum()))
        return {"worker": split}

    def _elapsed_s(self) -> float:
        return self._before_s + perf_counter() - self._began_s

    def memory_fill(self) -> float | None:
        filled, capacity = self._counters[:, 3:5].sum(0)
        return float(filled / capacity) if capacity else None

    def diagnostics(self) -> Mapping[str, float]:
        return self._newest

    def staleness(self) -> dict[str, float]:
        return staleness_of(self.strategy)

    def staff(self) -> list[dict[str, Any]]:
        return [
            {
                "id": post.index,
                "role": post.role,
                "pid": post.pid,
                "incarnation": post.incarnation,
                "agent_steps": self._steps_of(post.role, post.index),
            }
            for post in self.backend.staff()
        ]

    def _steps_of(self, role: str, index: int) -> int:
        return int(self._counters[index, 0]) if role == "worker" else 0

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Everybody waits between two turns: nothing is half done."""
        late = self.backend.park(PARKING_S)
        try:
            if late:
                raise Failure(
                    f"worker {min(late)} did not come to rest within {PARKING_S:.0f} s",
                    "the checkpoint before is still good",
                )
            yield
        finally:
            self.backend.go_on()

    def state(self, *, fresh_episodes: bool = False) -> State:  # noqa: ARG002
        """Running episodes and local memories are not kept: workers start anew, as after a kill."""
        return {
            "counters": self._counters.copy(),
            "scores": self.scores.state(),
            "strategy": self.strategy.state(),
            "restarts": self.restarts,
            "elapsed_s": self._elapsed_s(),
        }

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None:  # noqa: ARG002
        self.model.load(weights)
        self.strategy.restore(self.model.vector.clone(), state["strategy"])
        self.scores.restore(state["scores"])
        self._counters[:] = state["counters"]
        self.restarts = int(state["restarts"])
        self._before_s = float(state.get("elapsed_s", 0.0))
        self._since = self.agent_steps

    def close(self) -> None:
        """What is kept in shared memory goes with the backend."""


def _spec(plan: Plan, make_env: MakeEnv | None) -> EnvSpec:
    """What a worker's environments will be like: found by making them once."""
    seed = np.random.SeedSequence(plan.top.seed)
    lanes = plan.top.envs_per_worker
    env = envs.make(plan["env"], lanes=lanes, seed=seed, threads=1, factory=make_env)
    try:
        return env.spec
    finally:
        env.close()
