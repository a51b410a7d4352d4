from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import optim
from manyhands.networks.dense import Dense

LR = 0.01


def modules(seed: int = 0, channels: int = 3, hidden: int = 5) -> dict[str, nn.Module]:
    torch.manual_seed(seed)
    conv = nn.Sequential(
        nn.Conv2d(2, channels, 3), nn.ReLU(), nn.Flatten(), nn.Linear(channels * 4, hidden)
    )
    return {"actor": conv, "critic": nn.Sequential(nn.Flatten(), nn.Linear(32, 1, bias=False))}


def loss_of(nets: dict[str, nn.Module], x: torch.Tensor) -> torch.Tensor:
    return sum((net(x).square().mean() for net in nets.values()), torch.zeros(()))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), channels=st.integers(1, 5), hidden=st.integers(1, 7))
def test_the_flat_vector_is_the_model(seed: int, channels: int, hidden: int) -> None:
    """Same output, same gradients, and both are views of the one vector."""
    plain, flat = modules(seed, channels, hidden), modules(seed, channels, hidden)
    model = optim.FlatModel(flat)
    x = torch.randn(3, 2, 4, 4)
    loss_of(plain, x).backward()
    model.gradient.zero_()
    loss_of(flat, x).backward()
    for part in plain:
        pairs = zip(plain[part].parameters(), flat[part].parameters(), strict=True)
        for expected, got in pairs:
            torch.testing.assert_close(got, expected)
            torch.testing.assert_close(got.grad, expected.grad)
    covered = sorted((s.start, s.stop) for s in model.parts.values())
    assert covered[0][0] == 0
    assert covered[0][1] == covered[1][0]
    assert covered[1][1] == model.vector.numel()
    with torch.no_grad():
        model.vector[model.parts["actor"]] = 0
    assert all(not p.any() for p in flat["actor"].parameters())
    assert any(p.any() for p in flat["critic"].parameters())


def test_gradients_add_up_in_the_vector_with_channels_last() -> None:
    nets = modules()
    model = optim.FlatModel(nets)
    x = torch.randn(2, 2, 4, 4)
    loss_of(nets, x).backward()
    once = model.gradient.clone()
    assert once.abs().sum() > 0
    loss_of(nets, x).backward()
    torch.testing.assert_close(model.gradient, 2 * once)
    actor: Any = nets["actor"]
    assert actor[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_named_and_load_are_inverse() -> None:
    one, other = optim.FlatModel(modules(1)), optim.FlatModel(modules(2))
    assert not torch.equal(one.vector, other.vector)
    other.load(one.named())
    assert torch.equal(one.vector, other.vector)
    assert "actor.0.weight" in one.named()
    wrong = one.named() | {"actor.0.bias": np.zeros(99, np.float32)}
    with pytest.raises(ValueError, match=r"actor\.0\.bias"):
        other.load(wrong)


@pytest.mark.parametrize("name", ["adam", "adagrad", "sgd"])
def test_a_step_on_the_vector_is_a_step_on_every_tensor(name: str) -> None:
    plain, flat = modules(3), modules(3)
    model = optim.FlatModel(flat)
    config = optim.Config(name=name, eps=1e-8, momentum=0.9)
    options = {"lr": LR, "momentum": 0.9} if name == "sgd" else {"lr": LR, "eps": 1e-8}
    kinds = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    reference = kinds[name]([p for net in plain.values() for p in net.parameters()], **options)
    own = {part: optim.PartOptimizer(config, model.vector[at]) for part, at in model.parts.items()}
    for step in range(5):
        x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(step))
        reference.zero_grad()
        loss_of(plain, x).backward()
        reference.step()
        model.gradient.zero_()
        loss_of(flat, x).backward()
        for part, at in model.parts.items():
            own[part].step(model.gradient[at], LR)
    for part in plain:
        for a, b in zip(plain[part].parameters(), flat[part].parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adagrad_begins_with_the_sum_it_is_given() -> None:
    initial, plain = 0.1, torch.tensor([1.0, -2.0], requires_grad=True)
    ours = plain.detach().clone()
    config = optim.Config(name="adagrad", eps=1e-8, initial=initial)
    own = optim.PartOptimizer(config, ours)
    reference = torch.optim.Adagrad([plain], lr=LR, initial_accumulator_value=initial, eps=1e-8)
    for gradient in ([0.5, -0.1], [0.02, 0.3], [-1.0, 0.0]):
        plain.grad = torch.tensor(gradient)
        reference.step()
        own.step(torch.tensor(gradient), LR)
    torch.testing.assert_close(ours, plain.detach())


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_has_epsilon_inside_the_root(centered: bool) -> None:
    """Against Nature DQN's published loop, one number at a time."""
    decay, eps = 0.95, 0.01
    vector = torch.tensor([1.0, -2.0])
    config = optim.Config(name="rmsprop", decay=decay, eps=eps, centered=centered)
    optimizer = optim.PartOptimizer(config, vector)
    w, mean, square = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for gradient in ([0.5, -0.1], [0.2, 0.3], [-1.0, 0.0]):
        optimizer.step(torch.tensor(gradient), LR)
        for i, g in enumerate(gradient):
            mean[i] = decay * mean[i] + (1 - decay) * g
            square[i] = decay * square[i] + (1 - decay) * g * g
            variance = square[i] - mean[i] ** 2 if centered else square[i]
            w[i] -= LR * g / math.sqrt(variance + eps)
    torch.testing.assert_close(vector, torch.tensor(w))


@pytest.mark.parametrize("eps", [0.1, 1e-5, 2.4e-8])
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
def test_rmsprop_stays_true_over_many_steps(size: float, eps: float) -> None:
    """Whether epsilon or the gradients decide, and with gradients that come and go."""
    decay, steps = 0.99, 1000
    gradients = size * torch.randn(steps, 40, generator=torch.Generator().manual_seed(2))
    gradients[300:600] = 0
    vector = torch.zeros(40)
    optimizer = optim.PartOptimizer(optim.Config(name="rmsprop", decay=decay, eps=eps), vector)
    exact, square = np.zeros(40), np.zeros(40)
    for gradient in gradients:
        optimizer.step(gradient, LR)
        g = gradient.double().numpy()
        square = decay * square + (1 - decay) * g * g
        exact -= LR * g / np.sqrt(square + eps)
    np.testing.assert_allclose(vector.numpy(), exact, rtol=1e-3, atol=1e-4 * np.abs(exact).max())


@pytest.mark.parametrize("name", ["adam", "radam", "rmsprop", "adagrad", "sgd"])
def test_an_optimizer_that_finds_no_state_begins_again(name: str) -> None:
    config, gradient = optim.Config(name=name, momentum=0.5), torch.tensor([0.3, -2.0])
    used, new = torch.zeros(2), torch.zeros(2)
    optimizer = optim.PartOptimizer(config, used)
    optimizer.step(gradient, LR)
    optimizer.restore({})
    used.zero_()
    optimizer.step(gradient, LR)
    optim.PartOptimizer(config, new).step(gradient, LR)
    assert torch.equal(used, new)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("name", ["adam", "radam", "rmsprop", "adagrad", "sgd"])
def test_optimizer_state_continues_exactly(name: str, centered: bool) -> None:
    config = optim.Config(name=name, momentum=0.5, centered=centered)
    one, other = torch.ones(6), torch.ones(6)
    first = optim.PartOptimizer(config, one)
    gradients = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    for gradient in gradients[:3]:
        first.step(gradient, LR)
    other.copy_(one)
    second = optim.PartOptimizer(config, other)
    second.restore(first.state())
    for gradient in gradients[3:]:
        first.step(gradient, LR)
        second.step(gradient, LR)
    assert torch.equal(one, other)


def test_a_part_not_trained_is_not_stepped() -> None:
    """With Adam even a zero gradient moves a parameter; so nobody steps the other part."""
    model = optim.FlatModel(modules())
    own = {
        p: optim.PartOptimizer(optim.Config(), model.vector[at]) for p, at in model.parts.items()
    }
    before = model.vector.clone()
    own["actor"].step(torch.ones_like(model.vector[model.parts["actor"]]), LR)
    changed = model.vector != before
    assert changed[model.parts["actor"]].all()
    assert not changed[model.parts["critic"]].any()


def test_clip_scales_and_tells_what_is_not_finite() -> None:
    gradient = torch.tensor([3.0, 4.0])
    assert optim.clip(gradient, 10.0) == pytest.approx(5.0)
    assert gradient.tolist() == [3.0, 4.0]
    assert optim.clip(gradient, 1.0) == pytest.approx(5.0)
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]))
    assert optim.clip(torch.tensor([3.0, 4.0]), 0.0) == pytest.approx(5.0)
    assert not math.isfinite(optim.clip(torch.tensor([float("nan"), 1.0]), 1.0))
    assert not math.isfinite(optim.clip(torch.tensor([float("inf"), 1.0]), 1.0))


def test_radam_is_torchs() -> None:
    torch.manual_seed(0)
    mine = torch.randn(50)
    theirs = torch.nn.Parameter(mine.clone())
    ours = optim.PartOptimizer(optim.Config(name="radam"), mine)
    plain = torch.optim.RAdam([theirs], lr=0)
    for n in range(30):  # the first five are not yet trusted
        gradient, lr = torch.randn(50), 0.1 / (n + 1)
        ours.step(gradient, lr)
        plain.param_groups[0]["lr"] = lr
        theirs.grad = gradient
        plain.step()
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_a_users_layer_may_have_an_attribute_of_that_name() -> None:
    layer = nn.Linear(3, 2)
    layer.large = True  # type: ignore[assignment]
    model = optim.FlatModel({"q": layer})
    for _ in range(2):
        model.clear()
        layer(torch.ones(1, 3)).sum().backward()
        model.settle()
        model.changed()
    assert model.gradient.tolist() == [1.0] * 8


def test_clearing_and_settling_is_as_good_as_zeros() -> None:
    """Large layers replace their gradient; one that the loss does not reach ends at zero."""
    torch.manual_seed(0)
    layers = nn.ModuleDict({name: Dense(1024, 300) for name in ("used", "twice", "idle")})
    model = optim.FlatModel({"a": layers, "b": Dense(700, 400)})
    x = torch.randn(5, 1024)

    def loss() -> torch.Tensor:
        twice = layers["twice"](x) + layers["twice"](2 * x)
        return (layers["used"](x) * twice).square().mean()

    model.gradient.zero_()
    loss().backward()
    expected = model.gradient.clone()
    model.gradient.fill_(float("nan"))
    model.clear()
    loss().backward()
    model.settle()
    torch.testing.assert_close(model.gradient, expected)
    assert (model.gradient[model.parts["b"]] == 0).all()
    assert all(not layer.blank for layer in (*layers.values(), model.modules["b"]))
