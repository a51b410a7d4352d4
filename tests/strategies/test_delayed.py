"""Delayed: every gradient is applied a known number of updates after it was computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.strategies import delayed
from manyhands.types import BadRequest

LR = 0.05


def model_of_two_parts() -> optim.FlatModel:
    torch.manual_seed(3)
    return optim.FlatModel({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)})


def made(model: optim.FlatModel, updates: int) -> delayed.Delayed:
    strategy = delayed.make(
        delayed.Config(updates=updates),
        backend=InProcess(),
        vector=model.vector,
        parts=model.parts,
        optimizer=optim.Config(name="sgd", momentum=0.0),
    )
    strategy.join(model, 0)
    return strategy


def slope(model: optim.FlatModel, part: str) -> Tensor:
    """Of a bowl around one: what is subtracted depends on the parameters it was computed on."""
    return model.vector[model.parts[part]].detach() - 1


def push(strategy: delayed.Delayed, model: optim.FlatModel, part: str) -> None:
    version = strategy.pull(model)
    strategy.push(slope(model, part).clone(), part=part, version=version, lr=LR)


@pytest.mark.parametrize("updates", [1, 2, 5])
def test_it_is_descent_with_old_gradients(updates: int) -> None:
    model = model_of_two_parts()
    where = model.parts["b"]
    reached = [model.vector[where].clone()]
    for n in range(12):
        gradient = reached[max(n - updates, 0)] - 1
        reached.append(reached[-1] - LR * gradient)
    strategy = made(model, updates)
    for n in range(12 + updates):
        # Nothing is applied before `updates` gradients wait, so push n meets n - updates steps.
        expected = reached[max(n - updates, 0)]
        torch.testing.assert_close(model.vector[where].detach(), expected)
        push(strategy, model, "b")
    assert strategy.version() == 12


def test_staleness_is_the_delay() -> None:
    strategy, model = made(model_of_two_parts(), 4), model_of_two_parts()
    for _ in range(200):
        push(strategy, model, "a")
    mean, p95, dropped = strategy.ledger.staleness()
    assert (p95, dropped) == (4, 0)
    assert 3.9 < mean <= 4  # the first four were computed on the first parameters


def test_parts_do_not_mix() -> None:
    model = model_of_two_parts()
    strategy, before = made(model, 2), model.vector.clone()
    push(strategy, model, "a")
    push(strategy, model, "b")
    push(strategy, model, "b")
    a, b = model.parts["a"], model.parts["b"]
    torch.testing.assert_close(model.vector[a].detach(), before[a] - LR * (before[a] - 1))
    assert torch.equal(model.vector[b], before[b])


def test_what_waits_is_saved() -> None:
    model = model_of_two_parts()
    strategy = made(model, 3)
    for _ in range(7):
        push(strategy, model, "a")
    other_model = model_of_two_parts()
    other = made(other_model, 3)
    other.restore(strategy.newest().clone(), strategy.state())
    for _ in range(5):
        push(strategy, model, "a")
        push(other, other_model, "a")
    assert torch.equal(model.vector, other_model.vector)
    assert strategy.version() == other.version()


@pytest.mark.parametrize("updates", [0, 2])
def test_after_another_delay_nothing_waits(updates: int) -> None:
    model = model_of_two_parts()
    strategy, other = made(model, 3), made(model_of_two_parts(), updates)
    for _ in range(7):
        push(strategy, model, "a")
    other.restore(strategy.newest().clone(), strategy.state())
    assert other.version() == 4
    assert other.state()["own"]["delayed"]["pushes"] == 0


def test_a_wrong_part_is_refused() -> None:
    strategy = made(model_of_two_parts(), 3)
    state: Any = strategy.state()
    state["own"]["delayed"]["notes"] = np.full((3, 2), 2)
    with pytest.raises(ValueError, match="part"):
        strategy.restore(strategy.newest().clone(), state)


def test_many_workers_are_refused() -> None:
    with pytest.raises(BadRequest, match="delayed"):
        mh.train("cartpole", strategy="delayed", workers=2, steps=100, quiet=True)
