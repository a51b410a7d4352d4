"""A run without a folder, watched for some seconds: what it did, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from manyhands.config.plans import Plan
from manyhands.roles import counters
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.runs import machines
from manyhands.runs.progress import resources
from manyhands.runs.workers import Workers
from manyhands.types import AnyDemand, Array, EnvSpec, Failure

LOOK_S = 0.005
START_S = 120.0
TURNS = 20  # of every rank, before anything is measured
GRADIENTS, LONGER_S = 8, 10.0  # the least in a window, and how much longer it may take
TRIES, CALM = 4, 0.15  # cores that other programs may use


@dataclass(frozen=True)
class Window:
    """What a run did in some seconds."""

    seconds: float
    steps: int
    updates: int  # versions
    learned: int  # gradients
    staleness: float
    split: Mapping[str, Mapping[str, float]]  # seconds by role and part, of all its processes
    cpu_s: Mapping[str, float]  # by role: of cores used
    preempted: int  # how often the kernel took a core away
    others_s: float  # of cores that other programs used

    @property
    def others(self) -> float:
        """Cores that other programs kept busy."""
        return self.others_s / self.seconds

    @property
    def used_s(self) -> float:
        return sum(self.cpu_s.values())


@dataclass(frozen=True)
class Facts:
    """What a plan does not say before it has run."""

    lanes: int
    parameters: int
    demand: AnyDemand
    spec: EnvSpec
    ahead_steps: int
    publish_every: int


@contextmanager
def started(plan: Plan) -> Iterator[Watched]:
    threads = resources(plan)
    set_threads_for(plan, threads)
    with closing(machines.make_backend(plan)) as backend:
        workers = Workers(plan, backend, threads=threads, make_env=None, network=None)
        with closing(workers):
            workers.prepare()
            running = backend.run(workers.jobs())
            with closing(running):
                yield Watched(workers, running)


class Watched:
    """A running run."""

    def __init__(self, workers: Workers, running: Iterator[Any]) -> None:
        self._workers, self._running = workers, running

    def await_updates(self) -> None:
        """Until all processes have started and learned, past the warm-up."""
        workers, deadline_s = self._workers, time.monotonic() + START_S
        learners = slice(workers.acting if workers.apart else 0, None)
        while True:
            rows = workers.counters.rows()
            steps, updates = (
                rows[: workers.acting, counters.STEPS],
                rows[learners, counters.UPDATES],
            )
            if steps.min() >= TURNS * workers.spec.lanes and updates.min() >= 1:
                return
            if time.monotonic() > deadline_s:
                what = f"{workers.ranks} processes of {workers.plan.task}"
                raise Failure(
                    f"{what} did not learn in {START_S:g} s", "train it once, to see what is slow"
                )
            self._look()

    def calm_window(self, seconds: float) -> Window:
        """The first in which other programs used little; after some tries the calmest."""
        seen: list[Window] = []
        while len(seen) < TRIES:
            seen.append(self.window(seconds))
            if seen[-1].others <= CALM:
                break
        return min(seen, key=lambda window: window.others)

    def window(self, seconds: float) -> Window:
        """Longer if few gradients were made: those of a long rollout come together."""
        first = self._sample()
        until_s = first.now_s + seconds
        while (now_s := time.perf_counter()) < until_s + LONGER_S:
            if now_s >= until_s and self._gradients() >= first.gradients + GRADIENTS:
                break
            self._look()
        return first.until(self._sample(), self._roles())

    def facts(self) -> Facts:
        workers, plan = self._workers, self._workers.plan
        return Facts(
            lanes=workers.spec.lanes,
            parameters=workers.model.vector.numel(),
            demand=workers.algorithm.demand,
            spec=workers.spec,
            ahead_steps=plan.memory.ahead_steps,
            publish_every=plan.top.publish_every,
        )

    def _gradients(self) -> int:
        return int(self._workers.counters.rows()[:, counters.UPDATES].sum())

    def _look(self) -> None:
        fault = next(self._running)
        if fault is not None:
            raise Failure(f"{fault.process.role}: {fault.cause}", "train it once, to see why")
        self._workers.look()

    def _roles(self) -> dict[str, slice]:
        acting = self._workers.acting
        if self._workers.apart:
            return {"actor": slice(0, acting), "learner": slice(acting, None)}
        return {"worker": slice(0, None)}

    def _sample(self) -> Sample:
        workers = self._workers
        ledger = workers.strategy.ledger.state()
        cpu: dict[str, float] = {}
        preempted, own = 0, psutil.Process().cpu_times()
        for process in workers.backend.process_table():
            with suppress(psutil.Error):
                seen = psutil.Process(process.pid)
                times = seen.cpu_times()
                cpu[process.role] = cpu.get(process.role, 0.0) + times.user + times.system
                preempted += seen.num_ctx_switches().involuntary
        return Sample(
            time.perf_counter(),
            workers.counters.rows().copy(),
            workers.updates,
            np.asarray(ledger["applied"]).copy(),
            cpu,
            preempted,
            _busy_s() - own.user - own.system,
        )


def _busy_s() -> float:
    """Of all cores, since the machine started: also those that a hypervisor gave to others."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted twice
    return float(sum(times) - idle - guests)


@dataclass(frozen=True)
class Sample:
    now_s: float
    rows: Array
    version: int
    applied: Array  # gradients by staleness
    cpu_s: dict[str, float]
    preempted: int
    busy_s: float  # of all cores, by all but this process

    @property
    def gradients(self) -> int:
        return int(self.rows[:, counters.UPDATES].sum())

    def until(self, last: Sample, roles: Mapping[str, slice]) -> Window:
        rows, applied = last.rows - self.rows, last.applied - self.applied
        total = rows.sum(0)
        cpu_s = {role: last.cpu_s[role] - self.cpu_s.get(role, 0.0) for role in last.cpu_s}
        return Window(
            seconds=last.now_s - self.now_s,
            steps=int(total[counters.STEPS]),
            updates=last.version - self.version,
            learned=int(total[counters.UPDATES]),
            staleness=float((applied * np.arange(len(applied))).sum() / max(1, applied.sum())),
            split={
                role: dict(
                    zip(PARTS_OF_TIME, rows[own, counters.SPENT].sum(0).tolist(), strict=True)
                )
                for role, own in roles.items()
            },
            cpu_s=cpu_s,
            preempted=last.preempted - self.preempted,
            others_s=max(0.0, last.busy_s - self.busy_s - sum(cpu_s.values())),
        )
