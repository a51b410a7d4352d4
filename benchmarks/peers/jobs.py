"""The jobs that every side does, and how a side measures itself and reports.

A side is one file, run by the Python of its own environment: ``SIDE.py JOB THREADS SECONDS``. It
prints one line of JSON. This file imports nothing, so that it works in every environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    task: str
    algorithm: str
    lanes: int  # environments
    about: str
    hidden: tuple[int, ...] = ()  # of a dense network; empty: Nature's convolutions and 512
    batch: int = 0  # rows of an update from replay, or of a minibatch
    steps_per_update: int = 1  # agent steps, for replay
    rollout: int = 0  # steps of each environment; 0: replay
    epochs: int = 1
    first_updates: int = 2  # before the clock starts; of rollouts: iterations

    @property
    def unit(self) -> str:
        return "steps" if self.rollout else "updates"

    @property
    def minibatches(self) -> int:
        return self.lanes * self.rollout // self.batch


LEARNING_STARTS, REPLAY_ROWS = 1_000, 100_000
JOBS = {
    "breakout-dqn": Job(
        "breakout", "dqn", 32, "Nature's network, batch 32, one update per 4 agent steps",
        batch=32, steps_per_update=4, first_updates=24,
    ),
    "breakout-ppo": Job(
        "breakout", "ppo", 8, "8 environments x 128 steps, 4 epochs of 4 minibatches",
        batch=256, rollout=128, epochs=4,
    ),
    "breakout-a2c": Job(
        "breakout", "a2c", 16, "16 environments x 5 steps", batch=80, rollout=5, first_updates=10
    ),
    "breakout-pqn": Job(
        "breakout", "pqn", 8, "8 environments x 32 steps, 2 epochs of 4 minibatches, layer norm",
        batch=64, rollout=32, epochs=2, first_updates=4,
    ),
    "lunarlander-dqn": Job(
        "lunarlander", "dqn", 1, "256x256, batch 128, one update per agent step",
        hidden=(256, 256), batch=128, first_updates=200,
    ),
    "lunarlander-ppo": Job(
        "lunarlander", "ppo", 16, "64x64, 16 environments x 128 steps, 4 epochs of 32 minibatches",
        hidden=(64, 64), batch=64, rollout=128, epochs=4,
    ),
    "cartpole-dqn": Job(
        "cartpole", "dqn", 1, "128x128, batch 64, one update per agent step",
        hidden=(128, 128), batch=64, first_updates=200,
    ),
    "cartpole-ppo": Job(
        "cartpole", "ppo", 8, "64x64, 8 environments x 128 steps, 4 epochs of 4 minibatches",
        hidden=(64, 64), batch=256, rollout=128, epochs=4, first_updates=4,
    ),
}  # fmt: skip
GYM = {"breakout": "ALE/Breakout-v5", "lunarlander": "LunarLander-v3", "cartpole": "CartPole-v1"}
ENVPOOL = {"breakout": "Breakout-v5", "lunarlander": "LunarLander-v3", "cartpole": "CartPole-v1"}


class Clock:
    """Counts agent steps and updates for some seconds, from the end of the warm-up."""

    def __init__(self, job: Job, seconds: float) -> None:
        self._job, self._seconds = job, seconds
        self._began: tuple[float, int, int] | None = None
        self._start_up_s = 0.0
        self.over = False

    def look(self, steps: int, updates: int) -> bool:
        """To be called after every whole iteration, with totals. True: stop, it is over."""
        now_s = time.perf_counter()
        if self._began is None:
            if updates >= self._job.first_updates:
                self._began, self._start_up_s = (now_s, steps, updates), age_s()
        elif not self.over and now_s - self._began[0] >= self._seconds:
            self.over = True
            began_s, steps_before, updates_before = self._began
            result = {
                "updates": updates - updates_before,
                "steps": steps - steps_before,
                "seconds": now_s - began_s,
                "start_up_s": self._start_up_s,
            }
            print(json.dumps(result), flush=True)
        return self.over


def age_s() -> float:
    """How long this process has run."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def run(drive: Callable[[Job, int, Clock], None]) -> None:
    """What the file of a side calls. Libraries may leave threads: the process ends at once."""
    job = JOBS[sys.argv[1]]
    drive(job, int(sys.argv[2]), Clock(job, float(sys.argv[3])))
    os._exit(0)
