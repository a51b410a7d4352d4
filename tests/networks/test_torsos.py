from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.maths import products
from manyhands.networks import layers, own, torsos
from manyhands.networks.config import TORSOS, Config
from manyhands.networks.dense import Dense
from manyhands.networks.heads import features_of
from manyhands.networks.torsos import mlp, nature, small
from manyhands.optim import FlatModel
from manyhands.types import BadRequest


def plain_nature(net: nature.Nature, x: torch.Tensor) -> torch.Tensor:
    """The paper's forward pass, nothing rearranged; the dense layer reads y, x, channel."""
    x = x.to(torch.float32) / 255
    x = F.relu(F.conv2d(x, net.first.weight, net.first.bias, stride=4))
    x = F.relu(F.conv2d(x, net.second.weight, net.second.bias, stride=2))
    x = F.relu(F.conv2d(x, net.third.weight, net.third.bias))
    return net.dense(x.permute(0, 2, 3, 1).reshape(len(x), -1))


@pytest.mark.parametrize(("shape", "blocked"), [((4, 84, 84), True), ((3, 50, 46), False)])
def test_nature_is_the_papers_network(shape: tuple[int, int, int], blocked: bool) -> None:
    torch.manual_seed(0)
    net = nature.Nature(shape, (32, 64, 64), (512,), scale=1.0)
    x = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    assert net.blocked is blocked
    fast, slow = net(x), plain_nature(net, x)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    weights = [net.first.weight, net.second.weight, net.third.weight]
    for a, b in zip(
        torch.autograd.grad(fast.square().sum(), weights),
        torch.autograd.grad(slow.square().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def of_both_precisions(config: Config, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Features and gradient, in float32 and in bfloat16, of the same parameters."""
    found = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        net: Any = torsos.make(replace(config, precision=precision), tuple(x.shape[1:]), scale=1.0)
        model = FlatModel({"net": net.to(memory_format=torch.channels_last)})
        features = net(x)
        model.clear()
        features.square().sum().backward()
        model.settle()
        assert features.dtype == model.gradient.dtype == torch.float32
        found.append((features.detach(), model.gradient.clone()))
    return found


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize(
    ("shape", "rows"), [((4, 84, 84), 32), ((4, 84, 84), 64), ((3, 50, 46), 5), ((4, 8, 8), 5)]
)
def test_bfloat16_is_float32_but_for_its_rounding(
    norm: str, shape: tuple[int, ...], rows: int
) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8)
    (features, gradient), (rounded, of_rounded) = of_both_precisions(Config(norm=norm), x)
    assert not torch.equal(features, rounded)
    torch.testing.assert_close(rounded, features, rtol=0.05, atol=0.02 * float(features.max()))
    assert F.cosine_similarity(gradient, of_rounded, dim=0) > 0.99
    assert float(of_rounded.norm() / gradient.norm()) == pytest.approx(1, abs=0.05)


def test_bytes_are_exact_in_bfloat16() -> None:
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    blocks = nature.blocks_of_image(image, torch.bfloat16)
    torch.testing.assert_close(blocks.float(), nature.blocks_of_image(image), rtol=0, atol=0)


def test_a_dense_torso_computes_in_float32_alone() -> None:
    with pytest.raises(BadRequest, match="bfloat16 is for nature and small"):
        torsos.make(Config(precision="bfloat16"), (8,), scale=1.0)


def test_nature_has_the_papers_number_of_parameters() -> None:
    net = nature.Nature((4, 84, 84), (32, 64, 64), (512,), scale=1.0)
    assert sum(p.numel() for p in net.parameters()) == 1_684_128


def test_blocks_of_floats_equal_blocks_of_bytes() -> None:
    image = torch.randint(0, 256, (2, 4, 12, 8), dtype=torch.uint8)
    blocks = nature.blocks_of_image(image)
    torch.testing.assert_close(blocks, nature.blocks_of_image(image.to(torch.float32)))
    assert blocks.is_contiguous(memory_format=torch.channels_last)
    channel, row, column, dy, dx = 3, 2, 1, 1, 2
    assert blocks[1, channel * 16 + dy * 4 + dx, row, column] == image[1, channel, 9, 6]


def test_pixels_become_fractions_and_numbers_are_scaled() -> None:
    bytes_ = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert layers.to_float(bytes_, 1.0).tolist() == [[0.0, 1.0]]
    assert layers.to_float(torch.tensor([[2.0]]), 0.5).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((8,), mlp.MLP), ((4, 84, 84), nature.Nature), ((4, 8, 8), small.Small)],
)
def test_auto_fits_the_observation(shape: tuple[int, ...], kind: type[nn.Module]) -> None:
    made = torsos.make(Config(), shape, scale=1.0)
    assert isinstance(made, kind)
    assert features_of(made, shape, torch.float32) > 0


def test_widths_are_the_ones_asked_for() -> None:
    nature = torsos.make(Config(channels=(16, 32, 24), hidden=(8,)), (4, 84, 84), scale=1.0)
    widths = [m.out_channels for m in nature.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [16, 32, 24]
    small = torsos.make(Config(channels=(3, 5), norm="layer"), (2, 6, 6), scale=1.0)
    assert [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)] == [3, 5]
    assert small(torch.zeros(2, 2, 6, 6)).shape == (2, 128)


def test_the_wrong_number_of_widths_is_refused() -> None:
    with pytest.raises(BadRequest, match="has 2 values, the torso 3 convolutions"):
        torsos.make(Config(channels=(16, 32)), (4, 84, 84), scale=1.0)


def test_a_torso_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"nature does not fit observations of shape \(8,\)"):
        torsos.make(Config(torso="nature"), (8,), scale=1.0)


def test_a_torso_must_return_features() -> None:
    with pytest.raises(BadRequest, match="Return \\[batch, features\\]"):
        own.check(nn.Identity(), (4, 8, 8), torch.float32)


@pytest.mark.parametrize("onednn", [False, hasattr(torch.ops.mkldnn, "_linear_pointwise")])
@pytest.mark.parametrize("rows", [4, 8, 48, 49])  # some are multiplied transposed
def test_dense_is_linear_and_adds_to_the_gradient(
    rows: int, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_is_faster", lambda: onednn)
    torch.manual_seed(0)
    dense, linear = Dense(700, 400), nn.Linear(700, 400)
    linear.load_state_dict(dense.state_dict())
    for layer in (dense, linear):
        for parameter in layer.parameters():
            parameter.grad = torch.ones_like(parameter)
    x = torch.randn(rows, 700)
    xs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    for layer, each in zip((dense, linear), xs, strict=True):
        for _ in range(2):  # twice: gradients add up
            layer(each).square().sum().backward()
    near: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}  # sums of many products, in another order
    torch.testing.assert_close(dense.weight.grad, linear.weight.grad, **near)
    torch.testing.assert_close(dense.bias.grad, linear.bias.grad, **near)
    torch.testing.assert_close(xs[0].grad, xs[1].grad, **near)
    torch.testing.assert_close(dense(x), linear(x))
    with torch.no_grad():
        torch.testing.assert_close(dense(x), linear(x))
        assert dense(x).is_contiguous()


@pytest.mark.usefixtures("bfloat16")
def test_a_weight_is_rounded_again_after_it_changed() -> None:
    dense, x = Dense(700, 400), torch.randn(4, 700).bfloat16()
    model = FlatModel({"dense": dense})
    nn.init.zeros_(dense.bias)

    def doubled_is_seen() -> bool:
        """In acting, and in learning."""
        before = [dense(x).float().detach() for _ in range(2)]
        with torch.inference_mode():
            before += [dense(x).float()]
        model.vector.mul_(2)
        with torch.inference_mode():
            after = dense(x).float()
        model.vector.mul_(0.5)
        assert all(torch.equal(one, before[0]) for one in before)
        return not torch.equal(after, before[0])

    assert doubled_is_seen()  # nobody tells, so it is looked at every time
    model.changed()
    assert not doubled_is_seen()
    once = dense(x).float()
    model.vector.mul_(2)
    model.changed()
    torch.testing.assert_close(dense(x).float(), 2 * once, rtol=0, atol=0)


@pytest.mark.usefixtures("bfloat16")
def test_bfloat16_gradients_add_up_and_unreached_ones_are_zero() -> None:
    torch.manual_seed(0)
    reached, other = Dense(700, 400), Dense(700, 400)
    model, x = FlatModel({"a": reached, "b": other}), torch.randn(64, 700).bfloat16()
    model.gradient.fill_(9)
    model.clear()
    reached(x).float().sum().backward()
    gradient: Any = reached.weight.grad
    once = gradient.clone()
    reached(x).float().sum().backward()
    model.settle()
    torch.testing.assert_close(reached.weight.grad, 2 * once)
    torch.testing.assert_close(once, x.float().sum(0).expand(400, 700), rtol=0.02, atol=0.1)
    unreached: Any = other.weight.grad
    assert not unreached.any()


@pytest.mark.parametrize("layer", [Dense(3, 2), Dense(700, 400)])
def test_bytes_are_no_input_of_a_dense_layer(layer: Dense) -> None:
    pixels = torch.ones(4, layer.in_features, dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        layer(pixels)
    with torch.no_grad(), pytest.raises(RuntimeError):
        layer(pixels)


def test_dense_without_a_gradient_yet_makes_one() -> None:
    dense = Dense(2, 1)
    dense(torch.ones(1, 2)).sum().backward()
    assert dense.weight.grad is not None
    assert dense.weight.grad.tolist() == [[1.0, 1.0]]


def test_the_files_of_the_folder_are_the_choices() -> None:
    assert TORSOS == ["mlp", "nature", "small"]
    with pytest.raises(BadRequest, match="'natur' is not known: did you mean nature"):
        torsos.make(Config(torso="natur"), (4, 84, 84), scale=1.0)


@pytest.mark.parametrize("shape", [(8,), (3, 5), (1, 6, 6), (4, 35, 84), (4, 36, 36)])
def test_auto_finds_exactly_one(shape: tuple[int, ...]) -> None:
    files = [importlib.import_module(f"manyhands.networks.torsos.{name}") for name in TORSOS]
    (chosen,) = (file for file in files if file.is_first_choice(shape))
    assert chosen.fits(shape)
