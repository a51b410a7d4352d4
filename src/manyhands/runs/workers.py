"""The workers of a run as main sees them: one in main's process, or many in other processes.

One worker is the case n = 1. Main holds the strategy, the counters, the channel and everything else
that is shared, and sees the workers through these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from manyhands import optim
from manyhands.config.plans import Plan
from manyhands.roles import counters, jobs, kept_state, making, pacing
from manyhands.roles.making import MakeEnv, MakeTorso
from manyhands.roles.published import PublishedWeights
from manyhands.roles.scores import Episode, Scores
from manyhands.roles.worker import Worker
from manyhands.runs import environments, machines, shared_experience, staleness
from manyhands.runs.process_table import ProcessTable
from manyhands.runs.time_split import Split, split_of
from manyhands.strategies import Ledger
from manyhands.types import (
    Backend,
    Batch,
    Break,
    Demand,
    Environment,
    EnvSpec,
    Fault,
    Job,
    ProcessInfo,
    Rank,
    State,
)

EPISODES_WAITING = 1024  # messages that wait for main; further ones are lost, but steps are counted
COLLECTING_S = 60.0
ACTORS_NICE = 5  # learners run first: all actors wait for a slow learner, but not the reverse


class Workers:
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
        """`tell` is called before each part that takes long."""
        self.plan, self.backend, self.threads = plan, backend, threads
        self._make_env, self._network, self._on_nonfinite = make_env, network, on_nonfinite
        self.tell, top = tell, plan.top
        self.apart = top.actors > 0
        self.acting = top.actors if self.apart else top.workers
        self.learners = top.learners if self.apart else top.workers
        self.ranks = self.acting + self.learners if self.apart else self.acting
        self._env: Environment | None = None  # of the only worker, until it is prepared
        self._prepared: Worker | None = None
        self.spec = self._find_spec()
        init = np.random.SeedSequence(top.seed).spawn(1)[0]
        self.algorithm = making.seeded_algorithm(plan, self.spec, network, init)
        self.model = optim.FlatModel(self.algorithm.modules)
        self.preflight, self.memory_bytes = making.memory_needed(
            plan, self.spec, self.algorithm, self.acting
        )
        numbers = self.model.vector.numel()
        self._needs = machines.needs_of(plan, self.memory_bytes, numbers, self.algorithm.demand)
        backend.reserve(self._needs, tell)
        self._make_shared(backend)
        self.scores, self.processes = Scores(1), ProcessTable()
        self.since = 0  # agent steps when the run was resumed
        self.saved: dict[int, State] = {}  # by rank: the states that the run resumes with
        self.kept_queues = False  # whether rollouts that waited were restored
        self.split_before: Split = {}  # of the processes that the run had before
        self._began_s, self.before_s, self._closed = perf_counter(), 0.0, False
        self._newest, self._breaks = dict[str, float](), list[Fault]()

    def _make_shared(self, backend: Backend) -> None:
        plan, model = self.plan, self.model
        self.strategy = making.make_strategy(plan, backend, model, self.learners)
        self.shared_lanes = shared_experience.make(plan, backend, self.spec, self.algorithm)
        self.imagined = shared_experience.make_imagined(plan, backend, self.spec)
        self.published = PublishedWeights(backend, model.vector) if self.apart else None
        self.acted = Ledger(backend, self.acting) if self.apart else None
        self.kept_state = kept_state.make(backend, self.algorithm.state())
        self.buffers = kept_state.make(backend, model.buffers.arrays())  # the first learner's
        self.counters = backend.table(self.ranks, len(counters.FIELDS), np.dtype(np.float64))
        most = np.inf if plan.top.minutes else plan.top.steps
        self.budget = backend.budget(self.counters, counters.STEPS, most)
        self._channel = backend.channel(EPISODES_WAITING)
        self.lr_scale = backend.table(1, 1, np.dtype(np.float64))  # main writes it
        self.scale_lr(1.0)

    # --- Starting -------------------------------------------------------------------------------

    def _find_spec(self) -> EnvSpec:
        plan, lanes = self.plan, self.plan.top.envs_per_worker
        if plan.alone:
            self.tell(f"making {lanes} environment(s){environments.about(plan, self._make_env)}")
            self._env = self._make_envs(np.random.SeedSequence(plan.top.seed))
            return self._env.spec
        acting = f"{self.acting} with {lanes} environment(s) each"
        self.tell(f"starting {plan.processes} processes, {acting}")
        return environments.spec_of(plan, factory=self._make_env)

    def _make_envs(self, seeds: np.random.SeedSequence) -> Environment:
        threads, factory = self.threads, self._make_env
        return environments.make_all(self.plan, seeds, threads=threads, factory=factory)

    def prepare(self) -> None:
        """Makes the only worker, in this process. Others are made where they run."""
        if not self.plan.alone:
            return
        job, first = jobs.WorkerJob(**self._shared(), strategy=self.strategy), Rank(0, 0)
        if self.since and self._env is not None and not self.saved:
            self._env.close()  # its episodes would repeat those of the run's first steps
            self._env = self._make_envs(job.seeds(first))
        seconds = environments.about(self.plan, self._make_env, self.threads)
        self.tell(f"resetting them{seconds}")
        self._prepared, self._env = job.make(first, self._env), None

    @property
    def worker(self) -> Worker:
        """The only worker, if it is in this process."""
        if self._prepared is None:
            raise AttributeError("the workers of this run are in other processes")
        return self._prepared

    def _shared(self) -> dict[str, Any]:
        """The fields of `roles.jobs.shared.Shared`."""
        same = ["plan", "spec", "counters", "budget", "ranks", "lr_scale", "shared_lanes"]
        same += ["imagined", "published", "acted", "kept_state", "buffers", "threads", "since"]
        same += ["saved", "kept_queues"]
        return {
            **{name: getattr(self, name) for name in same},
            "in_step": self.strategy.in_step,
            "episodes": self._channel,
            "make_env": self._make_env,
            "network": self._network,
            "on_nonfinite": self._on_nonfinite,
        }

    def jobs(self) -> list[Job]:
        return [self._job(rank) for rank in range(self.ranks)]

    def _job(self, rank: int) -> Job:
        shared, threads = self._shared(), self.threads
        shared["saved"] = {n: state for n, state in self.saved.items() if n == rank}
        if self.apart and rank < self.acting:
            assert self.shared_lanes is not None
            shared["shared_lanes"] = self.shared_lanes.to_write()
            return Job(jobs.ActorJob(**shared), "actor", threads, ACTORS_NICE, anywhere=True)
        shared["strategy"] = self.strategy.for_learners()
        if self.apart:
            return Job(jobs.LearnerJob(**shared), "learner", threads)
        work = jobs.WorkerJob(**shared, prepared=self._prepared)
        return Job(work, threads=threads, anywhere=self._needs.anywhere[rank])

    # --- What they did --------------------------------------------------------------------------

    @property
    def agent_steps(self) -> int:
        rows = self.counters.rows()
        return int(rows[0, counters.STEPS] if self.ranks == 1 else rows[:, counters.STEPS].sum())

    @property
    def updates(self) -> int:
        return self.strategy.version()

    @property
    def gradients(self) -> int:
        return int(self.counters.rows()[:, [counters.UPDATES, counters.NONFINITE]].sum())

    @property
    def caught_up(self) -> bool:
        """Whether all due updates were made. A worker makes them in its turn."""
        demand = self.algorithm.demand
        if not self.apart or not isinstance(demand, Demand):
            return True
        return all(self._has_caught_up(pairing, demand) for pairing in pacing.pairings(self.plan))

    def _has_caught_up(self, pairing: pacing.Pairing, demand: Demand) -> bool:
        rows = self.counters.rows()
        due = pairing.updates_due(demand, int(rows[list(pairing.actors), counters.STEPS].sum()))
        return bool((rows[list(pairing.learners), counters.DRAWN] >= due).all())

    def look(self) -> None:
        for item in self._channel.drain():
            if "episode" in item:
                score, length, steps, judged, told = item["episode"]
                self.scores.ended(
                    Episode(float(score), int(length), int(steps), bool(judged), told)
                )
            elif "break" in item:
                self._breaks.append(_fault_of(ProcessInfo(*item["process"]), Break(*item["break"])))
            else:
                self._newest = item["diagnostics"]

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Inside this block main's copy has the newest parameters. After `close` it has them."""
        if not self._closed:
            self.backend.look()
            self.model.overwrite(self.strategy.newest())
            if self.buffers is not None:
                self.model.buffers.load(self.buffers.get())
        with self.model.buffers.kept():
            yield

    def begin(self) -> None:
        """Starts main's clock. It gives the time that no worker has counted."""
        self._began_s = perf_counter()

    def scale_lr(self, factor: float) -> None:
        self.lr_scale.row(0)[0] = factor

    def take_breaks(self) -> list[Fault]:
        breaks, self._breaks = self._breaks, []
        return breaks

    def faults(self) -> dict[str, int]:
        skipped, torn = self.counters.rows()[:, [counters.NONFINITE, counters.TORN]].sum(0)
        restarts, nodes_lost = self.processes.restarts, self.processes.nodes_lost
        found = {"restarts": restarts, "nonfinite_skipped": int(skipped), "torn_rows": int(torn)}
        return {**found, "nodes_lost": nodes_lost}

    def time_split(self, *, roles_of_now: bool = False) -> Split:
        """Seconds by role and part. `roles_of_now`: without roles that the run had before."""
        actors = self.plan.top.actors
        split = split_of(self.counters.rows(), actors, self.elapsed_s(), self.split_before)
        now = ("actor", "learner") if self.apart else ("worker",)
        return {role: split[role] for role in now} if roles_of_now else split

    def elapsed_s(self) -> float:
        return self.before_s + perf_counter() - self._began_s

    def memory_fill(self) -> float | None:
        filled, capacity = self.counters.rows()[:, [counters.FILLED, counters.CAPACITY]].sum(0)
        return float(filled / capacity) if capacity else None

    def diagnostics(self) -> Mapping[str, float]:
        made = {**self._newest, **self.strategy.diagnostics()}
        if self.apart:
            rows, demand = self.counters.rows(), self.algorithm.demand
            made |= pacing.samples_per_insert(demand, rows, self.spec.lanes)
        return made if self.acted is None else {**made, **staleness.metrics(self.acted)}

    def process_table(self) -> list[dict[str, Any]]:
        running = self.backend.process_table()
        if self.plan.alone and not running:
            running = [ProcessInfo("worker", 0, 0, os.getpid())]
        return self.processes.look(running, self.counters.rows())

    # --- Checkpoints ----------------------------------------------------------------------------

    def state(self) -> State:
        """While all are parked. A process that died is left out: it begins new episodes."""
        self.backend.look()
        self.look()
        own = self.backend.collect(COLLECTING_S)
        kept = {} if self.kept_state is None else self.kept_state.get()
        first = own.get(self.acting if self.apart else 0, {}).get("learner", {})
        shared = self.shared_lanes
        return {
            "algorithm": first.get("algorithm", kept),
            "experience": None if shared is None else shared.state(),
            "counters": self.counters.rows().copy(),
            "scores": self.scores.state(),
            "strategy": self.strategy.state(),
            "ledger": self.strategy.ledger.state(),
            "acted": None if self.acted is None else self.acted.state(),
            "restarts": self.processes.restarts,
            "nodes_lost": self.processes.nodes_lost,
            "lr_scale": float(self.lr_scale.rows()[0, 0]),
            "elapsed_s": self.elapsed_s(),
            "split_before": self.split_before,
            "processes": {str(rank): state for rank, state in own.items()},
        }

    def close(self) -> None:
        self._closed = True
        if self._env is not None:
            self._env.close()
        if self._prepared is not None:
            self._prepared.env.close()


def _fault_of(process: ProcessInfo, failure: Break) -> Fault:
    return Fault(time.time(), process, failure.cause, "environment replaced", failure.detail)
