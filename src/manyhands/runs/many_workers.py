"""Many workers, each in its own process. Main sees them through counters and a channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from manyhands import envs, optim
from manyhands.config.plans import Plan
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles import counters, jobs, kept_state, making, pacing
from manyhands.roles.making import MakeEnv, MakeTorso
from manyhands.roles.published import PublishedWeights
from manyhands.roles.scores import Episode, Scores
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.runs import shared_experience
from manyhands.runs.workers import fault_of, restore_strategy, staleness_of
from manyhands.types import (
    Array,
    Backend,
    Batch,
    Break,
    Demand,
    EnvSpec,
    Failure,
    Fault,
    Job,
    ProcessInfo,
    QueueDemand,
    State,
    restored,
)

EPISODES_WAITING = 1024  # messages that wait for main; further ones are lost, but steps are counted
PARKING_S = 30.0
ACTORS_NICE = 5  # learners run first: all actors wait for a slow learner, but not the reverse


class ManyWorkers:
    """Main holds the strategy, the counters, the channel and everything else that is shared."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        threads: int,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.plan, self.backend, self.threads = plan, backend, threads
        self._make_env, self._network, self._on_nonfinite = make_env, network, on_nonfinite
        self._breaks: list[Fault] = []
        top = plan.top
        self.apart = top.actors > 0
        acting, learners = (top.actors, top.learners) if self.apart else (top.workers, top.workers)
        lanes = top.envs_per_worker
        tell(f"starting {plan.processes} processes, {acting} with {lanes} environment(s) each")
        self.spec = _spec(plan, make_env)
        init = np.random.SeedSequence(plan.top.seed).spawn(1)[0]
        self.algorithm = making.seeded_algorithm(plan, self.spec, network, init)
        self.model = optim.FlatModel(self.algorithm.modules)
        self.strategy = making.make_strategy(plan, backend, self.model, learners)
        self.scores = Scores(1)
        self.preflight, self.memory_bytes = making.memory_needed(
            plan, self.spec, self.algorithm, acting
        )
        self.shared_lanes = shared_experience.make(plan, backend, self.spec, self.algorithm)
        self.published = PublishedWeights(backend, self.model.vector) if self.apart else None
        self.kept_state = kept_state.make(backend, self.algorithm.state())
        self.buffers = kept_state.make(backend, self.model.buffers.arrays())  # the first learner's
        self.restarts = 0
        self._began_s, self._before_s = perf_counter(), 0.0
        self._since, self._closed = 0, False
        self._newest: dict[str, float] = {}
        ranks = acting + learners if self.apart else acting
        self._counters = backend.allocate((ranks, len(counters.FIELDS)), np.dtype(np.float64))
        self._channel = backend.channel(EPISODES_WAITING)

    @property
    def agent_steps(self) -> int:
        return int(self._counters[:, counters.STEPS].sum())

    @property
    def updates(self) -> int:
        return self.strategy.version()

    @property
    def gradients(self) -> int:
        return int(self._counters[:, [counters.UPDATES, counters.NONFINITE]].sum())

    @property
    def caught_up(self) -> bool:
        demand = self.algorithm.demand
        if not self.apart or not isinstance(demand, Demand):
            return True
        return all(self._has_caught_up(pairing, demand) for pairing in pacing.pairings(self.plan))

    def _has_caught_up(self, pairing: pacing.Pairing, demand: Demand) -> bool:
        share = pacing.learner_share(pairing.share_of(demand), len(pairing.learners))
        recorded = self._counters[list(pairing.actors), counters.STEPS].sum()
        due = (recorded - share.warmup_steps) // share.steps_per_update
        return bool((self._counters[list(pairing.learners), counters.DRAWN] >= due).all())

    def jobs(self) -> list[Job]:
        shared = (
            self.plan,
            self.spec,
            self.strategy,
            self._counters,
            self._channel,
            self.shared_lanes,
            self.published,
            self.kept_state,
            self.buffers,
            self.threads,
            self._since,
            self._make_env,
            self._network,
            self._on_nonfinite,
        )
        top = self.plan.top
        if not self.apart:
            return [Job(jobs.WorkerJob(*shared), threads=self.threads)] * top.workers
        act = Job(jobs.ActorJob(*shared), role="actor", threads=self.threads, nice=ACTORS_NICE)
        learn = Job(jobs.LearnerJob(*shared), role="learner", threads=self.threads)
        return [act] * top.actors + [learn] * top.learners

    def look(self) -> None:
        for item in self._channel.drain():
            if "episode" in item:
                score, length, steps, judged, metrics = item["episode"]
                values = (float(score), int(length), int(steps), bool(judged), metrics)
                self.scores.ended(Episode(*values))
            elif "break" in item:
                self._breaks.append(fault_of(ProcessInfo(*item["who"]), Break(*item["break"])))
            else:
                self._newest = item["diagnostics"]

    @contextmanager
    def newest(self) -> Iterator[None]:
        """After `close` main's copy is already the newest."""
        if not self._closed:
            self.model.overwrite(self.strategy.newest())
            if self.buffers is not None:
                self.model.buffers.load(self.buffers.get())
        with self.model.buffers.kept():
            yield

    def begin(self) -> None:
        """Starts main's clock. It gives the time that no worker has counted."""
        self._began_s = perf_counter()

    def rest(self) -> None:
        """Does nothing: workers train on while main is busy."""

    def note(self, fault: Fault) -> None:
        self.restarts += fault.action.startswith("restarted")

    def take_breaks(self) -> list[Fault]:
        breaks, self._breaks = self._breaks, []
        return breaks

    def faults(self) -> dict[str, int]:
        skipped, torn = self._counters[:, [counters.NONFINITE, counters.TORN]].sum(0)
        restarts = self.restarts
        return {"restarts": restarts, "nonfinite_skipped": int(skipped), "torn_rows": int(torn)}

    def time_split(self) -> dict[str, dict[str, float]]:
        """Seconds by role. Starting, restarting and leaving count as "other"."""
        acting = self.plan.top.actors
        ranks = {"actor": slice(acting), "learner": slice(acting, None)}
        return {
            role: self._spent(rows)
            for role, rows in (ranks if self.apart else {"worker": slice(None)}).items()
        }

    def _spent(self, ranks: slice) -> dict[str, float]:
        spent = self._counters[ranks, counters.SPENT]
        split = dict(zip(PARTS_OF_TIME, map(float, spent.sum(0)), strict=True))
        split["other"] += max(0.0, len(spent) * self._elapsed_s() - float(spent.sum()))
        return split

    def _elapsed_s(self) -> float:
        return self._before_s + perf_counter() - self._began_s

    def memory_fill(self) -> float | None:
        filled, capacity = self._counters[:, [counters.FILLED, counters.CAPACITY]].sum(0)
        return float(filled / capacity) if capacity else None

    def diagnostics(self) -> Mapping[str, float]:
        return {**self._newest, **self.strategy.diagnostics(), **self._pace()}

    def _pace(self) -> dict[str, float]:
        """How often each recorded step was drawn, if actors are apart from learners."""
        demand = self.algorithm.demand
        recorded = self.agent_steps - getattr(demand, "warmup_steps", 0)
        if not self.apart or recorded <= 0:
            return {}
        if isinstance(demand, Demand):
            drawn = self._counters[:, counters.UPDATES].sum() * demand.batch_size
        else:
            assert isinstance(demand, QueueDemand)  # other algorithms have no actors apart
            drawn = self._counters[:, counters.DRAWN].sum() * demand.batch_steps(self.spec.lanes)
        return {"charts/samples_per_insert": float(drawn / recorded)}

    def staleness(self) -> dict[str, float]:
        return staleness_of(self.strategy)

    def process_table(self) -> list[dict[str, Any]]:
        return [
            {
                "id": process.index,
                "role": process.role,
                "pid": process.pid,
                "incarnation": process.incarnation,
                "agent_steps": self._steps_of(process.role, process.index),
            }
            for process in self.backend.process_table()
        ]

    def _steps_of(self, role: str, index: int) -> int:
        acts = role in ("worker", "actor")
        return int(self._counters[index, counters.STEPS]) if acts else 0

    @contextmanager
    def parked(self) -> Iterator[None]:
        """All processes wait between two turns, so shared state is consistent."""
        late = self.backend.park(PARKING_S)
        try:
            if late:
                raise Failure(
                    f"worker {min(late)} did not pause within {PARKING_S:.0f} s",
                    "the previous checkpoint is still good",
                )
            yield
        finally:
            self.backend.go_on()

    def state(self, *, fresh_episodes: bool = False) -> State:  # noqa: ARG002
        """Does not hold running episodes: after a resume, environments begin new ones."""
        self.look()
        return {
            "algorithm": {} if self.kept_state is None else self.kept_state.get(),
            "memory": {"lanes": self.shared_lanes.state()}
            if isinstance(self.shared_lanes, SharedLanes)
            else {},
            "counters": self._counters.copy(),
            "scores": self.scores.state(),
            "strategy": self.strategy.state(),
            "ledger": self.strategy.ledger.state(),
            "restarts": self.restarts,
            "elapsed_s": self._elapsed_s(),
        }

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None:
        self.model.load(weights)
        if isinstance(self.shared_lanes, SharedLanes) and replay is not None:
            self.shared_lanes.restore(replay)
        if self.published is not None:
            self.published.publish(self.model.vector)
        if self.buffers is not None:
            self.buffers.put(self.model.buffers.arrays())
        if self.kept_state is not None and state.get("algorithm"):
            self.algorithm.restore(state["algorithm"])  # checks that the state fits
            self.kept_state.put(state["algorithm"])
        restore_strategy(self.strategy, self.model, state)
        self.scores.restore(state["scores"])
        self._counters[:] = restored.between(state, "counters", self._counters, 0, restored.MOST)
        self.restarts = restored.count(state, "restarts")
        self._before_s = restored.number({"elapsed_s": 0.0, **state}, "elapsed_s", least=0)
        self._since = self.agent_steps

    def close(self) -> None:
        """The backend frees the shared memory."""
        self._closed = True


def _spec(plan: Plan, make_env: MakeEnv | None) -> EnvSpec:
    """The spec of a worker's environments. Main makes only one, because emulators start slowly."""
    seed = np.random.SeedSequence(plan.top.seed)
    env = envs.make(plan.env, lanes=1, seed=seed, threads=1, factory=make_env)
    try:
        return replace(env.spec, lanes=plan.top.envs_per_worker)
    finally:
        env.close()
