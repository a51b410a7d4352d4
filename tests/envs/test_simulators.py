"""A simulator that is put into a state continues as the environment did."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from manyhands.envs import simulators
from manyhands.types import Array, BadRequest


def played(id: str, steps: int) -> tuple[Array, Array, simulators.Outcome]:
    """Observations, random actions, and what followed."""
    env, rng = gymnasium.make(id), np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    seen, _ = env.reset(seed=1)
    for _ in range(steps):
        action = int(rng.integers(env.action_space.n))  # type: ignore[attr-defined]
        then, reward, terminated, truncated, _ = env.step(action)
        rows.append((seen, action, then, reward, terminated))
        seen = env.reset()[0] if terminated or truncated else then
    before, actions, *after = (np.array(values) for values in zip(*rows, strict=True))
    return before, actions, simulators.Outcome(*after)


def test_cartpole_goes_on_as_gymnasium_does() -> None:
    before, actions, after = played("CartPole-v1", 500)
    got = simulators.of("CartPole-v1")(before, actions)
    np.testing.assert_allclose(got.observation, after.observation, atol=1e-6)
    assert got.terminated.tolist() == after.terminated.tolist()
    assert after.terminated.sum() > 5
    assert got.reward.tolist() == after.reward.tolist()


def test_a_lander_in_flight_does_but_for_its_engines_noise() -> None:
    before, actions, after = played("LunarLander-v3", 600)
    got = simulators.of("LunarLander-v3")(before, actions)
    flies = (before[:, 1] > 0.3) & ~after.terminated
    assert flies.sum() > 200
    away = np.abs(got.observation - after.observation)[flies]
    changes = (after.observation - before)[flies].std(0)
    assert (np.median(away, 0)[:6] < 0.2 * changes[:6]).all()
    assert np.median(np.abs(got.reward - after.reward)[flies]) < 0.3


def test_other_environments_are_refused() -> None:
    with pytest.raises(BadRequest, match="Acrobot-v1 has no simulator"):
        simulators.of("Acrobot-v1")
