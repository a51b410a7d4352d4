"""What acts by NumPy says what torch would have said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import optim
from manyhands.networks import heads, torsos
from manyhands.networks.forward import FEW, Forward, NotDense, passes_of

CPU = torch.device("cpu")
HEADS = ("QNetwork", "DuelingNetwork", "PolicyNetwork", "ValueNetwork", "ActorCritic")


def network(head: str, *, shape: tuple[int, ...] = (3,), scale: float = 1.0, norm: bool = False):
    made = torsos.MLP(shape, (16, 8), scale=scale, norm=norm)
    given = () if head == "ValueNetwork" else (5,)
    return getattr(heads, head)(made, 8, *given)


def by_torch(module: nn.Module, observation: np.ndarray) -> tuple[np.ndarray, ...]:
    with torch.no_grad():
        found = module(torch.from_numpy(observation))
    return tuple(t.numpy() for t in (found if isinstance(found, tuple) else (found,)))


def same(got: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("this should not have gone through torch")

    monkeypatch.setattr(Forward, "_by_torch", refuse)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, FEW), seed=st.integers(0, 99), pixels=st.booleans())
def test_every_head_says_what_torch_says(head: str, rows: int, seed: int, pixels: bool) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    module = network(head, shape=(2, 3), scale=0.5)
    observation = (
        rng.integers(0, 256, (rows, 2, 3), dtype=np.uint8)
        if pixels
        else rng.normal(size=(rows, 2, 3)).astype(np.float32)
    )
    before = observation.copy()
    same(Forward(CPU)(module, observation), by_torch(module, observation))
    assert np.array_equal(observation, before)


@pytest.mark.usefixtures("no_torch")
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


class Doubled(torsos.MLP):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(observation)


class Noisy(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


@pytest.mark.parametrize(
    "torso",
    [
        Doubled((3,), (8,), scale=1.0),
        nn.Sequential(Noisy(3, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(3, 8), nn.Tanh()),
        nn.Sequential(nn.Linear(3, 8, bias=False), nn.ReLU()),
        torsos.MLP((3,), (8,), scale=1.0, norm=True),
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 8)), nn.ReLU()).eval(),
    ],
    ids=["inherits", "inherits a layer", "tanh", "no bias", "norm", "hooked"],
)
def test_what_only_torch_knows_goes_through_torch(torso: nn.Module) -> None:
    module, observation = heads.QNetwork(torso, 8, 4), np.ones((2, 3), np.float32)
    with pytest.raises(NotDense):
        passes_of(module)
    same(Forward(CPU)(module, observation), by_torch(module, observation))


@pytest.mark.usefixtures("no_torch")
def test_many_observations_go_through_torch() -> None:
    module = network("QNetwork")
    with pytest.raises(AssertionError, match="through torch"):
        Forward(CPU)(module, np.ones((FEW + 1, 3), np.float32))


@pytest.mark.usefixtures("no_torch")
def test_a_users_torso_of_plain_layers_is_quick_too() -> None:
    module = heads.QNetwork(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), 8, 4)
    observation = np.ones((2, 3), np.float32)
    same(Forward(CPU)(module, observation), by_torch(module, observation))
