"""A2C, PPO and PQN: their losses one sample at a time, and what they remember."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.algorithms import a2c, ppo, pqn
from manyhands.maths import losses, policies
from manyhands.types import BadRequest, Batch, Rollout
from support.actor_critics import chances, close, make


def a_batch(**columns: torch.Tensor) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        observation=torch.randn(6, 3, generator=generator),
        action=torch.tensor([0, 3, 1, 1, 2, 0]),
        reward=torch.zeros(6),
        discount=torch.zeros(6),
        next_observation=torch.zeros(0),
        weight=torch.ones(6),
        rows=np.arange(6),
        columns=columns,
    )


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("module", [a2c, ppo])
def test_losses_one_sample_at_a_time(module: Any, shared: bool) -> None:
    options: dict[str, Any] = {"normalize": False, "clip": 0.3} if module is ppo else {}
    made = make(module, entropy=0.1, value_weight=0.7, shared=shared, **options)
    columns = {"advantage": numbers(2), "goal": numbers(3), "log_prob": numbers(4) - 1}
    batch = a_batch(**columns)
    found = {losses.part: losses for losses in made.losses(batch)}
    assert set(found) == ({"policy"} if shared else {"actor", "critic"})
    for i in range(6):
        chance, value = chances(made, batch.observation[i])
        advantage, taken = float(columns["advantage"][i]), chance[int(batch.action[i])]
        if module is a2c:
            actor = -advantage * math.log(taken)
        else:
            ratio = taken / math.exp(float(columns["log_prob"][i]))
            actor = -min(ratio * advantage, min(max(ratio, 0.7), 1.3) * advantage)
        actor -= 0.1 * -sum(p * math.log(p) for p in chance)
        critic = 0.7 * (float(columns["goal"][i]) - value) ** 2
        if shared:
            assert float(found["policy"].per_sample[i].detach()) == close(actor + critic)
        else:
            assert float(found["actor"].per_sample[i].detach()) == close(actor)
            assert float(found["critic"].per_sample[i].detach()) == close(critic)


def test_a2c_normalizes_advantages_if_told_to() -> None:
    columns = {"advantage": 5 + 3 * numbers(2), "goal": numbers(3)}
    options = {"entropy": 0.0, "value_weight": 0.0}
    found = next(make(a2c, normalize=True, **options).losses(a_batch(**columns)))
    columns["advantage"] = losses.normalized(columns["advantage"])
    same = next(make(a2c, **options).losses(a_batch(**columns)))
    torch.testing.assert_close(found.per_sample, same.per_sample)


def test_ppo_normalizes_advantages() -> None:
    made = make(ppo, entropy=0.0, value_weight=0.0)
    with torch.no_grad():
        logits, _ = made.networks.both(a_batch().observation)
        same = policies.policy_terms(logits, a_batch().action).log_prob
    batch = a_batch(advantage=5 + 3 * numbers(2), goal=numbers(3), log_prob=same)
    loss = next(made.losses(batch)).per_sample.detach()
    assert float(loss.mean()) == pytest.approx(0, abs=1e-5)
    assert float(loss.std()) == close(1)


def test_pqn_is_half_the_squared_error_of_the_action_taken() -> None:
    made = make(pqn)
    batch = a_batch(goal=numbers(3))
    found = next(made.losses(batch))
    for i in range(6):
        with torch.no_grad():
            value = float(made.network(batch.observation[i : i + 1])[0, batch.action[i]])
        error = float(batch.columns["goal"][i]) - value
        assert float(found.per_sample[i].detach()) == close(error**2 / 2)
        assert float(found.priorities[i]) == close(abs(error))


# --- Acting ------------------------------------------------------------------------------------


def test_what_is_remembered_is_what_the_network_says() -> None:
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    made, rng = make(ppo), np.random.default_rng(1)
    action, columns = made.act(seen, np.ones(5, np.float32), rng)
    assert set(columns) == set(made.remembers)
    for i in range(5):
        chance, value = chances(made, torch.from_numpy(seen[i]))
        assert float(columns["log_prob"][i]) == close(math.log(chance[action[i]]))
        assert float(columns["value"][i]) == close(value)


def test_pqn_remembers_the_best_value_even_where_it_explores() -> None:
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    made = make(pqn)
    _, columns = made.act(seen, np.ones(5, np.float32), np.random.default_rng(1))
    with torch.no_grad():
        best = made.network(torch.from_numpy(seen)).amax(1)
    np.testing.assert_allclose(columns["value"], best, rtol=1e-5)


# --- Targets -----------------------------------------------------------------------------------


def a_rollout(value: torch.Tensor) -> Rollout:
    """Two lanes, two steps; the first lane was cut short at its first step."""
    return Rollout(
        action=torch.zeros(2, 2, dtype=torch.int64),
        reward=torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        discount=torch.tensor([[0.9, 0.9], [0.9, 0.0]]),
        ended=torch.tensor([[True, False], [False, False]]),
        after=torch.randn(2, 3, generator=torch.Generator().manual_seed(5)),
        after_at=torch.tensor([0, 2]),
        columns={"value": value},
    )


def test_goals_by_hand() -> None:
    value = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    rollout = a_rollout(value)
    policy_gradient, q = make(a2c, lam=1.0), make(pqn, lam=0.5)
    with torch.no_grad():
        cut, newest = policy_gradient.networks.both(rollout.after)[1].tolist()
        q_cut, q_newest = q.network(rollout.after).amax(1).tolist()
    found = policy_gradient.targets(rollout).columns
    goal = [[1 + 0.9 * cut, 2 + 0.9 * 4.0], [3 + 0.9 * newest, 4.0]]
    torch.testing.assert_close(found["goal"], torch.tensor(goal))
    torch.testing.assert_close(found["advantage"], torch.tensor(goal) - value)
    goal = [[1 + 0.9 * q_cut, 2 + 0.9 * (0.5 * 0.4 + 0.5 * 4.0)], [3 + 0.9 * q_newest, 4.0]]
    torch.testing.assert_close(q.targets(rollout).columns["goal"], torch.tensor(goal))


def test_the_learning_rate_falls_to_a_tenth_and_stays() -> None:
    for module in (a2c, ppo, pqn):
        made = make(module, lr=1.0, lr_decay_steps=100)
        rates = [made.lr(t) for t in (0, 50, 100, 10**9)]
        assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
        assert make(module, lr=1.0).lr(10**9) == 1.0


class OneStep(gym.Env):
    """Pictures; every step is an episode."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: int) -> Any:  # noqa: ARG002
        return self.observation_space.sample() * 0, 1.0, True, False, {}


@pytest.mark.parametrize("recipe", ["paac", "ppo", "pqn", "impala"])
def test_rollouts_after_which_nothing_follows_are_learned_from(recipe: str, tmp_path: Path) -> None:
    """Every lane's last step ends an episode: no observation is left to value."""
    section = {"paac": "a2c"}.get(recipe, recipe)
    run = mh.train(
        OneStep,
        recipe=recipe,
        actors=0,
        steps=16,
        envs_per_worker=2,
        threads=1,
        network={"torso": "nature", "channels": (4, 4, 4), "hidden": (8,)},
        evaluation={"period_steps": 0},
        out=tmp_path / "run",
        quiet=True,
        **{section: {"rollout_steps": 4}},
    )
    assert run.summary["updates"] >= 2
    assert run.summary["faults"]["nonfinite_skipped"] == 0


@pytest.mark.parametrize(
    "workers", [{}, {"strategy": "lock", "workers": 2, "backend": "inprocess"}]
)
@pytest.mark.parametrize("algorithm", ["ppo", "pqn"])
def test_more_minibatches_than_steps_are_refused(
    algorithm: str, workers: dict[str, Any], tmp_path: Path
) -> None:
    """Some would be empty, and the mean of nothing is no number."""
    values = {algorithm: {"rollout_steps": 2, "minibatches": 5}, "envs_per_worker": 2}
    out = tmp_path / "run"
    with pytest.raises(BadRequest, match="5 minibatches of a rollout of 4 steps") as refused:
        mh.train(
            "toy/identity", recipe=algorithm, steps=40, out=out, quiet=True, **values, **workers
        )
    assert "minibatches to 4" in refused.value.remedy
    assert not out.exists()
