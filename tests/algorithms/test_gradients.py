"""The gradients that algorithms write by hand are those of autograd through the whole loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands import optim
from manyhands.algorithms import a2c, double_q, dqn, impala, ppo, pqn
from manyhands.networks.torsos import mlp
from manyhands.types import EnvSpec
from support.gradients import WithGraph
from support.q_batches import a_batch

SPEC = EnvSpec("three", 2, (3,), "float32", 1, 4)
WAYS: list[tuple[Any, dict[str, Any]]] = [
    (dqn, {}),
    (dqn, {"double": True, "dueling": True}),
    (double_q, {}),
    (pqn, {"dueling": True}),
    (a2c, {"normalize": True}),
    (a2c, {"shared": False}),
    (ppo, {}),
    (ppo, {"shared": False, "entropy": 0.0}),
    (impala, {"rollout_steps": 3}),
    (impala, {"rollout_steps": 3, "shared": False, "normalize": True}),
]


def made(module: Any, options: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    return module.make(
        module.Config(**options),
        spec=SPEC,
        torso=lambda: mlp.MLP((3,), (16, 8), scale=1.0, norm=True),
    )


def batch() -> Any:
    generator = torch.Generator().manual_seed(4)
    names = ("advantage", "goal", "after", "value")
    columns = {name: torch.randn(6, generator=generator) for name in names}
    columns["log_prob"] = -2 * torch.rand(6, generator=generator)
    columns["ended"] = torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.bool)
    columns["next_values"] = torch.randn(6, 4, generator=generator)
    return replace(a_batch(), columns=columns)


@pytest.mark.parametrize(("module", "options"), WAYS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_the_gradient_is_that_of_autograd(
    module: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.linspace(0.1, 0.3, 6)
    algorithm = made(module, options)
    model = optim.FlatModel(algorithm.modules)
    model.clear()
    for losses in algorithm.losses(batch()):
        losses.backward(weight)
    found = model.gradient.clone()
    assert found.abs().sum() > 0
    for room in (module, dqn, a2c):
        monkeypatch.setattr(room, "Gradients", WithGraph, raising=False)
    algorithm = made(module, options)
    model = optim.FlatModel(algorithm.modules)
    model.clear()
    total = sum(losses.per_sample.dot(weight) for losses in algorithm.losses(batch()))
    assert isinstance(total, torch.Tensor)
    total.backward()
    torch.testing.assert_close(found, model.gradient, rtol=1e-4, atol=1e-6)
