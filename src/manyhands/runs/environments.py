"""The environments that main makes: all of the only worker's, or one to know what they are like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from manyhands import envs
from manyhands.config.plans import Plan
from manyhands.roles.making import MakeEnv
from manyhands.roles.worker import env_seed
from manyhands.types import Environment, EnvSpec

WORTH_SAYING_S = 1.5


def make_all(
    plan: Plan, seeds: np.random.SeedSequence, *, threads: int, factory: MakeEnv | None
) -> Environment:
    """The environments of a worker with these seeds."""
    lanes, seed = plan.top.envs_per_worker, env_seed(seeds)
    return envs.make(plan.env, lanes=lanes, seed=seed, threads=threads, factory=factory)


def spec_of(plan: Plan, *, factory: MakeEnv | None) -> EnvSpec:
    """Of a worker's environments. Only one is made, because emulators start slowly."""
    seed = np.random.SeedSequence(plan.top.seed)
    env = envs.make(plan.env, lanes=1, seed=seed, threads=1, factory=factory)
    try:
        return replace(env.spec, lanes=plan.top.envs_per_worker)
    finally:
        env.close()


def about(plan: Plan, factory: MakeEnv | None, threads: int = 1) -> str:
    """How long making a worker's environments takes, or resetting them by these threads."""
    lanes = plan.top.envs_per_worker
    seconds = 0.0 if factory else envs.seconds_to_load(plan.env, lanes) / threads
    return f", about {seconds:.0f} s" if seconds >= WORTH_SAYING_S else ""
