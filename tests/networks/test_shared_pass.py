"""A pass shared among threads: what one thread computes, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from manyhands import optim
from manyhands.maths import threads
from manyhands.networks import heads, shared_pass, torsos
from manyhands.networks.config import Config

SHAPES = {"nature": (4, 84, 84), "small": (3, 12, 12)}


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    threads.use(1)


@pytest.fixture(autouse=True)
def _every_row_is_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1.0)


def network(torso: str, norm: str, precision: str) -> heads.QNetwork:
    torch.manual_seed(3)
    config = Config(torso=torso, norm=norm, precision=precision)
    body = torsos.make(config, SHAPES[torso], scale=1.0)
    features = heads.features_of(body, SHAPES[torso], torch.uint8)
    return heads.QNetwork(body, features, 4).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def pixels(torso: str, rows: int) -> Tensor:
    torch.manual_seed(4)
    return torch.randint(0, 256, (rows, *SHAPES[torso]), dtype=torch.uint8)


def values_and_gradient(
    model: optim.FlatModel, observation: Tensor, number: int
) -> tuple[Tensor, Tensor]:
    threads.use(number)
    values: Tensor = model.modules["q"](observation)
    model.clear()
    (values.square().sum() / len(values)).backward()
    model.settle()
    return values.detach().clone(), model.gradient.clone()


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("torso", SHAPES)
@pytest.mark.parametrize("rows", [17, 50, 64])
def test_shares_give_what_one_thread_gives(torso: str, norm: str, rows: int) -> None:
    model = optim.FlatModel({"q": network(torso, norm, "float32")})
    observation = pixels(torso, rows)
    values, gradient = values_and_gradient(model, observation, 1)
    for number in (2, 3):
        also_values, also_gradient = values_and_gradient(model, observation, number)
        torch.testing.assert_close(also_values, values)
        torch.testing.assert_close(also_gradient, gradient, rtol=1e-4, atol=1e-6)
        assert not model.gradient.requires_grad


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("number", [1, 2])
def test_pieces_give_what_one_pass_gives(
    norm: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = optim.FlatModel({"q": network("nature", norm, "float32")})
    observation = pixels("nature", 23)
    values, gradient = values_and_gradient(model, observation, 1)
    monkeypatch.setattr(shared_pass, "MOST_ROWS", 5)
    also_values, also_gradient = values_and_gradient(model, observation, number)
    torch.testing.assert_close(also_values, values)
    torch.testing.assert_close(also_gradient, gradient, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model.modules["q"](observation), values)


def test_the_same_number_of_threads_gives_the_same_bits() -> None:
    model = optim.FlatModel({"q": network("nature", "layer", "float32")})
    observation = pixels("nature", 40)
    first = values_and_gradient(model, observation, 2)
    for _ in range(5):
        again = values_and_gradient(model, observation, 2)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_pass_without_gradient_leaves_no_graph() -> None:
    net = network("nature", "none", "float32")
    threads.use(2)
    with torch.no_grad():
        values = net(pixels("nature", 32))
    assert not values.requires_grad
    with torch.inference_mode():
        assert torch.equal(net(pixels("nature", 32)), values)


def test_frozen_networks_are_shared_too() -> None:
    """As target networks are, whose parameters want no gradient."""
    net = network("nature", "none", "float32").requires_grad_(False)
    observation = pixels("nature", 32)
    one = net(observation)
    threads.use(2)
    torch.testing.assert_close(net(observation), one)


def test_little_work_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("nature", "none", "float32")
    threads.use(2)
    monkeypatch.setattr(threads, "WORTH_A_THREAD", 20e6)
    monkeypatch.setattr(threads, "each", _only_one)
    assert net(pixels("nature", 3)).shape == (3, 4)
    with pytest.raises(AssertionError):
        net(pixels("nature", 32))


def _only_one(calls: list[object]) -> list[object]:
    assert len(calls) == 1
    return [call() for call in calls]  # type: ignore[operator]
