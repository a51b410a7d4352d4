"""Evaluations end even if episodes do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from manyhands import envs
from manyhands.config import plans
from manyhands.runs.evaluate import evaluate


class Endless(gymnasium.Env[Any, Any]):
    """Reward 1 a step; no episode ends."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        return np.zeros(2, np.float32), 1.0, False, False, {}


def played(asked: int | None) -> Any:
    plan = plans.from_options(Endless, None, {"evaluation": {"episode_steps": 30}})
    algorithm: Any = SimpleNamespace(act=lambda seen, *_: (np.zeros(len(seen), np.int64), {}))
    given: dict[str, Any] = {"episodes": 20, "epsilon": 0.0, "seed": 1, "make_env": Endless}
    return evaluate(plan, algorithm, episode_steps=asked, **given)


@pytest.mark.parametrize(("asked", "steps"), [(None, 30), (7, 7)])
def test_an_endless_episode_is_cut_off_and_told(asked: int | None, steps: int) -> None:
    found = played(asked)
    assert found.scores == [steps] * 20
    assert f"over 20 episodes, 20 of them cut off after {steps} steps" in str(found)


@pytest.mark.parametrize(
    ("id", "lanes", "limit", "ends"),
    [("CartPole-v1", 1, 3, 3), ("CartPole-v1", 4, 3, 3), ("MountainCar-v0", 1, 900, 200)],
)
def test_the_lower_limit_holds(id: str, lanes: int, limit: int, ends: int) -> None:
    seed = np.random.SeedSequence(1)
    given: dict[str, Any] = {"lanes": lanes, "seed": seed, "threads": 1, "training": False}
    env = envs.make(envs.Config(id=id), **given, episode_steps=limit)
    env.reset()
    steps = [env.step(np.ones(lanes, np.int64)) for _ in range(ends)]
    env.close()
    assert [step.ended.all() for step in steps] == [False] * (ends - 1) + [True]
    assert steps[-1].discount.tolist() == [1.0] * lanes
