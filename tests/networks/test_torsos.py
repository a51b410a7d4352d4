from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from manyhands.networks import Config, torsos
from manyhands.networks.dense import Dense
from manyhands.networks.heads import features_of
from manyhands.types import BadRequest


def plain_nature(net: torsos.Nature, x: torch.Tensor) -> torch.Tensor:
    """The paper's forward pass, nothing rearranged; the dense layer reads y, x, channel."""
    x = x.to(torch.float32) / 255
    x = F.relu(F.conv2d(x, net.first.weight, net.first.bias, stride=4))
    x = F.relu(F.conv2d(x, net.second.weight, net.second.bias, stride=2))
    x = F.relu(F.conv2d(x, net.third.weight, net.third.bias))
    return net.dense(x.permute(0, 2, 3, 1).reshape(len(x), -1))


@pytest.mark.parametrize(("shape", "blocked"), [((4, 84, 84), True), ((3, 50, 46), False)])
def test_nature_is_the_papers_network(shape: tuple[int, int, int], blocked: bool) -> None:
    torch.manual_seed(0)
    net = torsos.Nature(shape, (32, 64, 64), (512,), scale=1.0)
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


def test_nature_has_the_papers_number_of_parameters() -> None:
    net = torsos.Nature((4, 84, 84), (32, 64, 64), (512,), scale=1.0)
    assert sum(p.numel() for p in net.parameters()) == 1_684_128


def test_blocks_of_floats_equal_blocks_of_bytes() -> None:
    image = torch.randint(0, 256, (2, 4, 12, 8), dtype=torch.uint8)
    blocks = torsos.blocks_of_image(image)
    torch.testing.assert_close(blocks, torsos.blocks_of_image(image.to(torch.float32)))
    assert blocks.is_contiguous(memory_format=torch.channels_last)
    channel, row, column, dy, dx = 3, 2, 1, 1, 2
    assert blocks[1, channel * 16 + dy * 4 + dx, row, column] == image[1, channel, 9, 6]


def test_pixels_become_fractions_and_numbers_are_scaled() -> None:
    bytes_ = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert torsos.to_float(bytes_, 1.0).tolist() == [[0.0, 1.0]]
    assert torsos.to_float(torch.tensor([[2.0]]), 0.5).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((8,), torsos.MLP), ((4, 84, 84), torsos.Nature), ((4, 8, 8), torsos.Small)],
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
    with pytest.raises(TypeError, match="not \\[batch, features\\]"):
        features_of(nn.Identity(), (4, 8, 8), torch.float32)


@pytest.mark.parametrize("rows", [4, 8, 48, 49])  # some are multiplied transposed
def test_dense_is_linear_and_adds_to_the_gradient(rows: int) -> None:
    torch.manual_seed(0)
    dense, linear = Dense(700, 400), nn.Linear(700, 400)
    linear.load_state_dict(dense.state_dict())
    for layer in (dense, linear):
        for parameter in layer.parameters():
            parameter.grad = torch.ones_like(parameter)
    x = torch.randn(rows, 700)
    xs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    for layer, own in zip((dense, linear), xs, strict=True):
        for _ in range(2):  # twice: gradients add up
            layer(own).square().sum().backward()
    torch.testing.assert_close(dense.weight.grad, linear.weight.grad)
    torch.testing.assert_close(dense.bias.grad, linear.bias.grad)
    torch.testing.assert_close(xs[0].grad, xs[1].grad)
    torch.testing.assert_close(dense(x), linear(x))
    with torch.no_grad():
        torch.testing.assert_close(dense(x), linear(x))
        assert dense(x).is_contiguous()


def test_dense_without_a_gradient_yet_makes_one() -> None:
    dense = Dense(2, 1)
    dense(torch.ones(1, 2)).sum().backward()
    assert dense.weight.grad is not None
    assert dense.weight.grad.tolist() == [[1.0, 1.0]]
