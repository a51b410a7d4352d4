"""Evaluation: plays episodes without learning."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from manyhands import envs
from manyhands.config.plans import Plan
from manyhands.roles.making import MakeEnv
from manyhands.types import Algorithm, Environment
from manyhands.viewing.display import score_text

LANES = 16  # environments stepped at once while evaluating
OWN_STREAM = 0x0E7A  # keeps evaluation seeds apart from training seeds


class Interrupted(Exception):
    """The evaluation was stopped before its last episode."""


class Evaluation(NamedTuple):
    scores: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        return float(np.std(self.scores))

    def __str__(self) -> str:
        mean, std = score_text(self.mean), score_text(self.std)
        return f"{mean} ± {std} over {len(self.scores)} episodes"

    def as_json(self) -> dict[str, float]:
        return {"episodes": len(self.scores), "mean": self.mean, "std": self.std}


def evaluate(
    plan: Plan,
    algorithm: Algorithm,
    *,
    episodes: int,
    epsilon: float,
    seed: int,
    threads: int = 1,
    make_env: MakeEnv | None = None,
    attend: Callable[[], bool] = lambda: True,
) -> Evaluation:
    """The raw scores of ``episodes`` episodes, on separate environments and seeds.

    `attend` is called after every step, for work that cannot wait. If it returns False, the
    evaluation stops with `Interrupted`.
    """
    lanes = min(episodes, LANES)
    env_seed, action_seed = np.random.SeedSequence((OWN_STREAM, seed)).spawn(2)
    env = envs.make(
        plan.env, lanes=lanes, seed=env_seed, threads=threads, training=False, factory=make_env
    )
    try:
        rng = np.random.default_rng(action_seed)
        scores = _play(env, algorithm, episodes=episodes, epsilon=epsilon, rng=rng, attend=attend)
        return Evaluation(scores)
    finally:
        env.close()


def _play(
    env: Environment,
    algorithm: Algorithm,
    *,
    episodes: int,
    epsilon: float,
    rng: np.random.Generator,
    attend: Callable[[], bool],
) -> list[float]:
    """Every lane plays a fixed number of episodes. Otherwise short episodes would count more."""
    lanes = env.spec.lanes
    left = np.full(lanes, episodes // lanes)
    left[: episodes % lanes] += 1
    running, scores = np.zeros(lanes), list[float]()
    exploration = np.full(lanes, epsilon, np.float32)
    observation = env.reset()
    while left.any():
        actions, _ = algorithm.act(observation, exploration, rng)
        step = env.step(actions)
        running += step.reward
        counted = step.ended & (left > 0)
        scores += running[counted].tolist()
        left[counted] -= 1
        running[step.ended] = 0
        for broken in step.broken:
            running[list(broken.lanes)] = 0
        observation = step.observation
        if not attend():
            raise Interrupted
    return scores
