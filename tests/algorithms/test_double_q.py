from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyhands.algorithms import double_q
from support.gradients import backward
from support.q_batches import SPEC, a_batch


def make(**values: Any) -> double_q.DoubleQ:
    torch.manual_seed(0)
    made = double_q.DoubleQ(
        double_q.Config(**values),
        spec=SPEC,
        torso=lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU()),
    )
    if values.get("target_period_updates"):  # teachers that lag behind, as in training
        with torch.no_grad():
            for teacher in made.teachers.values():
                for parameter in teacher.parameters():
                    parameter.add_(torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("period", [0, 100])
@pytest.mark.parametrize("turns", [1, 2])
def test_losses_against_one_sample_at_a_time(period: int, turns: int) -> None:
    made, batch = make(target_period_updates=period), a_batch()
    for version in range(turns):
        made.refreshed(version)
    pupil, other = ("q_b", "q_a") if turns == 1 else ("q_a", "q_b")
    got = next(made.losses(batch))
    assert got.part == pupil
    for i in range(6):
        with torch.no_grad():
            q = made.modules[pupil](batch.observation[i : i + 1])[0, batch.action[i]]
            following = batch.next_observation[i : i + 1]
            liked = int(made.modules[pupil](following)[0].argmax())
            worth = made.teachers[other](following)[0, liked]
            error = float(batch.reward[i] + batch.discount[i] * worth - q)
        huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
        assert float(got.per_sample[i].detach()) == pytest.approx(huber, rel=1e-4)
        assert float(got.priorities[i]) == pytest.approx(abs(error), rel=1e-4)


@pytest.mark.parametrize("period", [0, 100])
def test_turns_are_taken_and_only_the_pupil_gets_a_gradient(period: int) -> None:
    made = make(target_period_updates=period)
    trained = []
    for version in range(6):
        made.refreshed(version)
        for module in made.modules.values():
            module.zero_grad()
        losses = next(made.losses(a_batch()))
        backward(losses)
        trained.append(losses.part)
        for part, module in made.modules.items():
            moved = [p.grad is not None and bool(p.grad.any()) for p in module.parameters()]
            assert all(moved) if part == losses.part else not any(moved)
    assert trained == ["q_b", "q_a"] * 3


def test_without_a_period_the_networks_themselves_teach() -> None:
    made = make()
    assert made.teachers is made.modules
    assert made.state()["teachers"] == {}


def test_the_teachers_are_copied_once_a_period() -> None:
    made = make(target_period_updates=10)

    def same() -> bool:
        return all(
            torch.equal(a, b)
            for part in double_q.PARTS
            for a, b in zip(
                made.modules[part].parameters(), made.teachers[part].parameters(), strict=True
            )
        )

    made.refreshed(1)  # the first is copied whatever it is: it may come from elsewhere
    assert same()
    with torch.no_grad():
        next(made.modules["q_a"].parameters()).add_(1)
    made.refreshed(9)
    assert not same()
    made.refreshed(10)
    assert same()


def test_it_acts_by_the_sum_of_both() -> None:
    made = make()
    observation = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    greedy, _ = made.act(observation, np.zeros(200, np.float32), np.random.default_rng(0))
    with torch.no_grad():
        a, b = (made.modules[part](torch.from_numpy(observation)) for part in double_q.PARTS)
    assert greedy.tolist() == (a + b).argmax(1).tolist()
    assert greedy.tolist() != a.argmax(1).tolist()
    assert greedy.tolist() != b.argmax(1).tolist()


def test_state_brings_turn_and_teachers_back() -> None:
    one, other = make(target_period_updates=5), make(target_period_updates=5)
    for version in (11, 12, 13):
        one.refreshed(version)
    with torch.no_grad():
        next(one.teachers["q_a"].parameters()).add_(1)
    other.restore(one.state())
    assert next(one.losses(a_batch())).part == next(other.losses(a_batch())).part
    for part in double_q.PARTS:
        mine, theirs = one.teachers[part].state_dict(), other.teachers[part].state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    before = other.state()["teachers"]["q_a"]
    other.refreshed(14)  # 13 was in the same period: no copy yet
    after = other.state()["teachers"]["q_a"]
    assert all(np.array_equal(before[name], after[name]) for name in before)
