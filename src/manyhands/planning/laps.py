"""How much turns and gradients differ from each other: learners in step wait for the slowest."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from manyhands.config.plans import Plan
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.stopwatch import Stopwatch
from manyhands.runs import machines
from manyhands.runs.progress import resources
from manyhands.runs.workers import Workers

SECONDS, LEAST, QUANTILES = 1.0, 8, 32
LEAST_WAIT, LEAST_WAIT_S = 0.2, 1e-4  # of the step; less is noise


class Spreads(NamedTuple):
    """Parts of the mean, at equal quantiles."""

    turn: tuple[float, ...] = (1.0,)
    gradient: tuple[float, ...] = (1.0,)
    wait_s: float = 0.0  # of a turn: the environments use no core


class Recorder(Stopwatch):
    """Keeps the seconds of every turn's step, and of every turn's gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[float] = []  # seconds of a core
        self.waits: list[float] = []
        self.gradients: list[float] = []
        self._gradient_s, self._used_s = 0.0, time.process_time()

    def lap(self, part: str) -> None:
        before_s, used_before_s = self.seconds[part], self._used_s
        super().lap(part)
        self._used_s = time.process_time()
        spent_s, used_s = self.seconds[part] - before_s, self._used_s - used_before_s
        if part == "env":
            self.turns.append(used_s)
            self.waits.append(spent_s - used_s)
            if self._gradient_s:  # all of the turn before: they share some work
                self.gradients.append(self._gradient_s)
            self._gradient_s = 0.0
        elif part == "gradient":
            self._gradient_s += spent_s


def spreads(plan: Plan) -> Spreads:
    """By one worker in this process, which acts and learns whatever the roles of the plan."""
    top = replace(plan.top, workers=1, actors=0, learners=1, backend="inprocess")
    plan = replace(plan, top=top)
    threads = resources(plan)
    set_threads_for(plan, threads)
    recorder = Recorder()
    with closing(machines.make_backend(plan)) as backend:
        workers = Workers(plan, backend, threads=threads, make_env=None, network=None)
        with closing(workers):
            workers.prepare()
            worker = workers.worker
            worker.actor.stopwatch = worker.learner.stopwatch = recorder
            recorder.begin()
            until_s = time.perf_counter() + SECONDS
            while time.perf_counter() < until_s:
                worker.turn()
    wait_s = float(np.median(recorder.waits))
    waits = wait_s > LEAST_WAIT * np.median(recorder.turns) and wait_s > LEAST_WAIT_S
    return Spreads(spread(recorder.turns), spread(recorder.gradients), wait_s if waits else 0.0)


def spread(seconds: list[float]) -> tuple[float, ...]:
    if len(seconds) < LEAST:
        return (1.0,)
    middle = (np.arange(QUANTILES) + 0.5) / QUANTILES
    found = np.quantile(seconds[len(seconds) // 10 :], middle)
    return tuple((found / found.mean()).round(4).tolist())
