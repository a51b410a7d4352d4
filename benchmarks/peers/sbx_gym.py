"""SBX (Stable-Baselines3 in JAX) with Stable-Baselines3's environments."""

from __future__ import annotations

import sbx

import sb3
from jobs import Clock, Job, run


def drive(job: Job, threads: int, clock: Clock) -> None:  # noqa: ARG001
    """The harness sets the threads of XLA by environment variables."""
    sb3.drive_with(sbx, job, sb3.make_env(job), clock)


if __name__ == "__main__":
    run(drive)
