"""Dense networks in closed form return what torch returns, and the gradients that autograd has.

The compiled library is used where there is a compiler; every test runs without it as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import optim
from manyhands.maths import compiled, products
from manyhands.networks import closed, heads
from manyhands.networks.closed import ClosedForm, passes_of
from manyhands.networks.forward import Forward, Gradients
from manyhands.networks.torsos import mlp

CPU = torch.device("cpu")
WAYS = ("compiled", "by NumPy")
HEADS = ("QNetwork", "DuelingNetwork", "PolicyNetwork", "ValueNetwork", "ActorCritic")
ROWS = st.integers(1, 70)


@pytest.fixture(params=WAYS, autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "by NumPy":
        with mock.patch.object(compiled, "library", return_value=None):
            yield request.param
    elif compiled.library() is None:
        pytest.skip(compiled.found().why)
    else:
        yield request.param


def network(
    head: str, *, shape: tuple[int, ...] = (3,), scale: float = 1.0, norm: bool = False
) -> Any:
    made = mlp.MLP(shape, (16, 8), scale=scale, norm=norm)
    given = () if head == "ValueNetwork" else (5,)
    return getattr(heads, head)(made, 8, *given)


def as_tuple(output: Any) -> tuple[torch.Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def by_torch(module: nn.Module, observation: np.ndarray) -> tuple[np.ndarray, ...]:
    with torch.no_grad():
        return tuple(t.numpy() for t in as_tuple(module(torch.from_numpy(observation))))


def same(got: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def observations(rows: int, seed: int, *, pixels: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if pixels:
        return rng.integers(0, 256, (rows, 2, 3), dtype=np.uint8)
    return rng.normal(size=(rows, 2, 3)).astype(np.float32)


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=25, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 99), pixels=st.booleans(), norm=st.booleans())
def test_outputs_are_those_of_torch(
    head: str, rows: int, seed: int, pixels: bool, norm: bool
) -> None:
    torch.manual_seed(seed)
    module = network(head, shape=(2, 3), scale=0.5, norm=norm)
    assert passes_of(module) is not None
    observation = observations(rows, seed, pixels=pixels)
    before = observation.copy()
    same(Forward(CPU)(module, observation), by_torch(module, observation))
    assert np.array_equal(observation, before)


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=25, deadline=None)
@given(rows=ROWS, seed=st.integers(0, 99), pixels=st.booleans(), norm=st.booleans())
def test_gradients_are_those_of_autograd(
    head: str, rows: int, seed: int, pixels: bool, norm: bool
) -> None:
    torch.manual_seed(seed)
    module = network(head, shape=(2, 3), scale=0.5, norm=norm)
    for parameter in module.parameters():  # biases and norms too
        parameter.data += 0.1 * torch.randn_like(parameter)
    model, gradients = optim.FlatModel({"q": module}), Gradients()
    observation = torch.from_numpy(observations(rows, seed, pixels=pixels))
    outputs = as_tuple(module(observation))
    by_output = [torch.randn_like(output) for output in outputs]
    model.clear()
    torch.autograd.backward(outputs, by_output)
    expected = model.gradient.clone()
    model.gradient.fill_(7.0)  # the closed form replaces what was there
    assert gradients._closed.passes(module, observation.numpy()) is not None
    gradients(module, observation)
    gradients.backward(*(gradient.clone() for gradient in by_output))
    torch.testing.assert_close(model.gradient, expected, rtol=1e-3, atol=1e-4)


def test_products_of_many_rows_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch is built without oneDNN")
    monkeypatch.setattr(compiled, "library", lambda: None)
    monkeypatch.setattr(products, "numpy_is_slower", lambda: True)
    monkeypatch.setattr(products, "by_onednn", lambda _: True)
    monkeypatch.setattr(closed, "MANY", 0)
    module = network("DuelingNetwork", norm=True)
    model, gradients = optim.FlatModel({"q": module}), Gradients()
    observation = torch.randn(9, 3)
    model.clear()
    (expected,), (by_value,) = as_tuple(module(observation)), (torch.randn(9, 5),)
    expected.backward(by_value)
    by_autograd = model.gradient.clone()
    (values,) = gradients(module, observation)
    torch.testing.assert_close(values, expected.detach(), rtol=1e-4, atol=1e-5)
    gradients.backward(by_value)
    torch.testing.assert_close(model.gradient, by_autograd, rtol=1e-3, atol=1e-4)


def test_it_follows_parameters_that_change_and_that_move() -> None:
    module, observation = network("QNetwork"), np.ones((2, 3), np.float32)
    forward = Forward(CPU)
    same(forward(module, observation), by_torch(module, observation))
    model = optim.FlatModel({"q": module})
    model.vector.mul_(2)
    same(forward(module, observation), by_torch(module, observation))
    first, second = model.vector, torch.randn_like(model.vector)
    for home in (second, first, second):  # and that move back
        model.live_in(home)
        model.vector.mul_(2)
        same(forward(module, observation), by_torch(module, observation))
    other = network("QNetwork")  # and an algorithm that has taken another network
    same(forward(other, observation), by_torch(other, observation))


class Doubled(mlp.MLP):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(observation)


class Noisy(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


LAYER = nn.Linear(8, 8)


@pytest.mark.parametrize(
    "torso",
    [
        Doubled((3,), (8,), scale=1.0),
        nn.Sequential(Noisy(3, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(3, 8, bias=False), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 8), LAYER, nn.ReLU(), LAYER),
        nn.Sequential(nn.ReLU(), nn.Linear(3, 8)),
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 8)), nn.ReLU()).eval(),
    ],
    ids=["inherits", "inherits a layer", "tanh", "no bias", "twice", "relu first", "hooked"],
)
def test_what_only_torch_knows_goes_through_torch(torso: nn.Module) -> None:
    module, observation = heads.QNetwork(torso, 8, 4), np.ones((2, 3), np.float32)
    assert passes_of(module) is None
    same(Forward(CPU)(module, observation), by_torch(module, observation))


def test_observations_that_are_not_rows_go_through_torch() -> None:
    module = heads.QNetwork(nn.Sequential(nn.Linear(3, 8), nn.Flatten()), 16, 4)
    observation = np.ones((5, 2, 3), np.float32)
    same(Forward(CPU)(module, observation), by_torch(module, observation))
    plain = heads.QNetwork(nn.Sequential(nn.Linear(3, 8)), 8, 4)
    assert ClosedForm().passes(plain, observation) is None
    assert ClosedForm().passes(plain, observation[:, 0]) is not None


def test_a_frozen_layer_keeps_its_weights() -> None:
    module = heads.QNetwork(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), 8, 4)
    module.torso.requires_grad_(False)
    model, gradients = optim.FlatModel({"q": module}), Gradients()
    model.clear()
    (values,) = gradients(module, torch.ones(5, 3))
    gradients.backward(torch.ones_like(values))
    assert float(model.gradient[: 3 * 8 + 8].abs().sum()) == 0
    assert float(model.gradient.abs().sum()) > 0


def test_a_target_network_needs_no_gradient() -> None:
    module = network("QNetwork").requires_grad_(False)
    observation = torch.ones(5, 3)
    (values,) = Forward(CPU).tensors(module, observation)
    torch.testing.assert_close(values, module(observation))
