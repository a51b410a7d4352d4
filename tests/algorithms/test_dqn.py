from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyhands.algorithms import dqn
from support.gradients import backward
from support.q_batches import SPEC, a_batch


def make(**values: Any) -> dqn.DQN:
    torch.manual_seed(0)
    made = dqn.DQN(
        dqn.Config(**values), spec=SPEC, torso=lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU())
    )
    with torch.no_grad():  # prediction and target differ, as in training
        for parameter in made.target.parameters():
            parameter.add_(torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("double", [False, True])
def test_losses_against_one_sample_at_a_time(double: bool) -> None:
    made, batch = make(double=double), a_batch()
    got = next(made.losses(made.targets(batch)))
    for i in range(6):
        with torch.no_grad():
            q = made.online(batch.observation[i : i + 1])[0, batch.action[i]]
            future = made.target(batch.next_observation[i : i + 1])[0]
            choice = made.online(batch.next_observation[i : i + 1])[0] if double else future
            error = float(batch.reward[i] + batch.discount[i] * future[int(choice.argmax())] - q)
        huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
        assert float(got.per_sample[i].detach()) == pytest.approx(huber, rel=1e-4)
        assert float(got.priorities[i]) == pytest.approx(abs(error), rel=1e-4)


def test_the_target_gets_no_gradient_and_the_prediction_does() -> None:
    made = make(double=True)
    backward(next(made.losses(made.targets(a_batch()))))
    assert all(p.grad is None for p in made.target.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in made.online.parameters())


def test_the_target_is_copied_once_a_period() -> None:
    made = make(target_period_updates=10)

    def same() -> bool:
        pairs = zip(made.online.parameters(), made.target.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    made.refreshed(1)  # the first is copied whatever it is: it may come from elsewhere
    assert same()
    with torch.no_grad():
        next(made.online.parameters()).add_(1)
    made.refreshed(9)
    assert not same()
    made.refreshed(10)
    assert same()
    with torch.no_grad():
        next(made.online.parameters()).add_(1)
    made.refreshed(19)
    assert not same()
    made.refreshed(23)  # a period that was jumped over counts all the same
    assert same()
    with torch.no_grad():
        next(made.online.parameters()).add_(1)
    made.restore({**made.state(), "copies": 100})  # of another learner, which is ahead
    assert made.refreshed(23)
    assert same()
    assert not made.refreshed(24)


def test_exploration_is_one_in_the_warmup_and_falls_to_its_end() -> None:
    made = make(warmup_steps=100, epsilon_decay_steps=1000, epsilon_end=0.1)
    assert [made.exploration(t) for t in (0, 100)] == [1.0, 1.0]
    assert made.exploration(600) == pytest.approx(0.55)
    assert made.exploration(1100) == made.exploration(10**9) == pytest.approx(0.1)


def test_the_learning_rate_falls_to_a_tenth() -> None:
    assert make(lr=1e-3).lr(10**9) == 1e-3
    falling = make(lr=1e-3, lr_decay_steps=100)
    assert falling.lr(0) == 1e-3
    assert falling.lr(50) == pytest.approx(5.5e-4)
    assert falling.lr(1000) == pytest.approx(1e-4)


def test_act_explores_as_often_as_told_row_by_row() -> None:
    made = make()
    observation = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    greedy, _ = made.act(observation, np.zeros(3, np.float32), np.random.default_rng(0))
    with torch.no_grad():
        expected = made.online(torch.from_numpy(observation)).argmax(1).numpy()
    assert greedy.tolist() == expected.tolist()
    rng = np.random.default_rng(1)
    epsilon = np.array([0.0, 0.4, 1.0], np.float32)
    drawn = np.array([made.act(observation, epsilon, rng)[0] for _ in range(4000)])
    left = (drawn != expected).mean(0)  # a random action is the greedy one in a quarter of cases
    np.testing.assert_allclose(left, [0, 0.3, 0.75], atol=0.03)
    assert drawn.dtype == np.int32


def test_state_brings_the_target_back() -> None:
    one, other = make(target_period_updates=5), make(target_period_updates=5)
    one.refreshed(12)
    other.restore(one.state())
    for a, b in zip(one.target.parameters(), other.target.parameters(), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        next(other.online.parameters()).add_(1)
    before = other.state()["target"]
    other.refreshed(14)  # 12 was in the same period: no copy yet
    after = other.state()["target"]
    assert all(np.array_equal(before[name], after[name]) for name in before)
