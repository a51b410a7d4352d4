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
    cut_off: int = 0  # episodes that reached the limit of steps
    episode_steps: int = 0  # that limit

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        return float(np.std(self.scores))

    def __str__(self) -> str:
        mean, std = score_text(self.mean), score_text(self.std)
        cut = f", {self.cut_off} of them cut off after {self.episode_steps:,} steps"
        return f"{mean} ± {std} over {len(self.scores)} episodes{cut * bool(self.cut_off)}"

    def as_json(self) -> dict[str, float]:
        return {"episodes": len(self.scores), "mean": self.mean, "std": self.std}


def evaluate(
    plan: Plan,
    algorithm: Algorithm,
    *,
    episodes: int,
    epsilon: float,
    seed: int,
    episode_steps: int | None = None,
    threads: int = 1,
    make_env: MakeEnv | None = None,
    attend: Callable[[], bool] = lambda: True,
) -> Evaluation:
    """The raw scores of ``episodes`` episodes, on separate environments and seeds.

    `episode_steps`: the most steps of an episode, instead of the plan's.
    `attend` is called after every step, for work that cannot wait. If it returns False, the
    evaluation stops with `Interrupted`.
    """
    lanes, most = min(episodes, LANES), plan.evaluation.episode_steps
    most = most if episode_steps is None else episode_steps
    env_seed, action_seed = np.random.SeedSequence((OWN_STREAM, seed)).spawn(2)
    env = envs.make(
        plan.env,
        lanes=lanes,
        seed=env_seed,
        threads=threads,
        training=False,
        factory=make_env,
        episode_steps=most,
    )
    try:
        rng = np.random.default_rng(action_seed)
        return _play(
            env, algorithm, episodes=episodes, epsilon=epsilon, episode_steps=most, rng=rng,
            attend=attend,
        )  # fmt: skip
    finally:
        env.close()


def _play(
    env: Environment,
    algorithm: Algorithm,
    *,
    episodes: int,
    epsilon: float,
    episode_steps: int,
    rng: np.random.Generator,
    attend: Callable[[], bool],
) -> Evaluation:
    """Every lane plays a fixed number of episodes. Otherwise short episodes would count more."""
    lanes = env.spec.lanes
    left = np.full(lanes, episodes // lanes)
    left[: episodes % lanes] += 1
    running, scores = np.zeros(lanes), list[float]()
    length, cut_off = np.zeros(lanes, np.int64), 0
    exploration = np.full(lanes, epsilon, np.float32)
    observation = env.reset()
    while left.any():
        actions, _ = algorithm.act(observation, exploration, rng)
        step = env.step(actions)
        running += step.reward
        length += 1
        counted = step.ended & (left > 0)
        scores += running[counted].tolist()
        left[counted] -= 1
        if episode_steps:
            cut_off += int((counted & (length >= episode_steps) & (step.discount > 0)).sum())
        running[step.ended] = length[step.ended] = 0
        for broken in step.broken:
            running[list(broken.lanes)] = length[list(broken.lanes)] = 0
        observation = step.observation
        if not attend():
            raise Interrupted
    return Evaluation(scores, cut_off, episode_steps)
