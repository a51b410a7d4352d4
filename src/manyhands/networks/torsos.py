"""Torsos: observations in, features out.

A torso takes observations as `envs` gives them (C x H x W, one-hot or vectors) and returns
``[b, features]``. It scales bytes to [0, 1]. A user's own torso (``--network my.py:Net``) is any
nn.Module class whose constructor takes the observation's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.networks.config import Config
from manyhands.networks.dense import Dense
from manyhands.networks.forward import Passes, chain
from manyhands.networks.shared_pass import in_shares
from manyhands.types import Array, BadRequest

UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_LAYERS = 100  # dense ones
NATURE_SMALLEST = 36  # pixels a side; the three convolutions need as many


def make(config: Config, shape: tuple[int, ...], *, scale: float) -> nn.Module:
    """The built-in torso of the configuration for observations of that shape."""
    name = config.torso if config.torso != "auto" else _fitting(shape)
    norm, dtype = config.norm == "layer", DTYPES[config.precision]
    if name == "mlp":
        only_float32(config, "the torso mlp")
        return MLP(shape, config.hidden or (256, 256), scale=scale, norm=norm)
    if name == "nature" and len(shape) == 3 and min(shape[1:]) >= NATURE_SMALLEST:
        channels, hidden = _channels(config, (32, 64, 64)), config.hidden or (512,)
        return Nature(shape, channels, hidden, scale=scale, norm=norm, dtype=dtype)
    if name == "small" and len(shape) == 3:
        channels, hidden = _channels(config, (16, 32)), config.hidden or (128,)
        return Small(shape, channels, hidden, scale=scale, norm=norm, dtype=dtype)
    raise BadRequest(
        f"--network.torso {name} does not fit observations of shape {shape}",
        f"use --network.torso {_fitting(shape)}, or auto",
    )


def parameters(config: Config, shape: tuple[int, ...]) -> int:
    """A lower bound of the torso's parameters, before it is made.

    Counts only sizes that were asked for. The default sizes are small.
    """
    if len(config.hidden) > MOST_LAYERS:
        raise BadRequest(
            f"--network.hidden has {len(config.hidden):,} layers", f"give at most {MOST_LAYERS}"
        )
    inputs = 1 if config.channels or len(shape) == 3 else math.prod(shape)
    return sum(
        a * b for wide in ((inputs, *config.hidden), config.channels) for a, b in pairwise(wide)
    )


def only_float32(config: Config, what: str) -> None:
    if DTYPES[config.precision] != torch.float32:
        raise BadRequest(
            f"--network.precision {config.precision} is for nature and small, not for {what}",
            "use --network.precision auto",
        )


def _channels(config: Config, own: tuple[int, ...]) -> tuple[int, ...]:
    """The channels of the configuration, or the torso's own."""
    given = len(config.channels)
    if given not in (0, len(own)):
        raise BadRequest(
            f"--network.channels has {given} values, the torso {len(own)} convolutions",
            f"give {len(own)} values, as its own are: {','.join(map(str, own))}",
        )
    return config.channels or own


def _fitting(shape: tuple[int, ...]) -> str:
    if len(shape) != 3:
        return "mlp"
    return "nature" if min(shape[1:]) >= NATURE_SMALLEST else "small"


def to_float(pixels_or_numbers: Tensor, scale: float) -> Tensor:
    """To float32; bytes are scaled to [0, 1]."""
    factor = scale / 255 if pixels_or_numbers.dtype == torch.uint8 else scale
    floats = pixels_or_numbers.to(torch.float32)
    return floats if factor == 1 else floats * factor


def convolved(
    image: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """A convolution in the precision of the image."""
    bias = None if bias is None else bias.to(image.dtype)
    return F.conv2d(image, weight.to(image.dtype), bias, stride=stride, padding=padding)


def dense_layers(sizes: Sequence[int], *, norm: bool) -> nn.Sequential:
    """Dense, ReLU, Dense, ReLU, …; with `norm`, a layer norm before each ReLU."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [Dense(inputs, outputs), *([nn.LayerNorm(outputs)] if norm else [])]
        layers += [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class NormReLU(nn.LayerNorm):
    """Layer norm over a whole channels-last image, then ReLU, without a copy.

    The ReLU comes before the permutation, since an in-place operation on a view is slow.
    """

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__((height, width, channels))

    def forward(self, image: Tensor) -> Tensor:
        normed = super().forward(image.permute(0, 2, 3, 1))
        return F.relu(normed, inplace=True).permute(0, 3, 1, 2)


def relus(norm: bool, *images: tuple[int, int, int]) -> nn.ModuleList:
    """A ReLU for each image (channels, rows, columns); with `norm`, a layer norm before it."""
    return nn.ModuleList(NormReLU(*image) if norm else nn.ReLU(inplace=True) for image in images)


def work_of(outputs: Mapping[nn.Conv2d, int]) -> float:
    """Multiply-adds of these convolutions, each with that many pixels to compute."""
    return float(sum(layer.weight.numel() * pixels for layer, pixels in outputs.items()))


class MLP(nn.Module):
    """Dense layers with ReLU on a flattened observation."""

    def __init__(
        self, shape: tuple[int, ...], hidden: Sequence[int], *, scale: float, norm: bool = False
    ) -> None:
        super().__init__()
        self.scale = scale
        self.layers = dense_layers((torch.Size(shape).numel(), *hidden), norm=norm)

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.layers(to_float(observation.flatten(1), self.scale))
        return features

    def quick(self) -> Passes:
        layers, scale = chain(self.layers), self.scale

        def forward(x: Array) -> tuple[Array]:
            factor = scale / 255 if x.dtype == UINT8 else scale
            if x.ndim != 2 or x.dtype != FLOAT32:
                x = x.reshape(len(x), -1).astype(FLOAT32, copy=False)
            return (layers(x if factor == 1 else x * np.float32(factor)),)

        return forward


class Nature(nn.Module):
    """The torso of Mnih et al. 2015: three convolutions and a dense layer, with ReLU.

    It differs in the order of the arithmetic, for speed on a CPU. Everything is channels-last. If
    height and width are divisible by four, the first layer (8x8, stride 4) is computed as 2x2 with
    stride 1 on blocks of 4x4 pixels.
    With `dtype` bfloat16 only the torso computes in bfloat16. Parameters, gradients and heads stay
    float32.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        channels: Sequence[int],
        hidden: Sequence[int],
        *,
        scale: float,
        norm: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        frames, height, width = shape
        self.scale, self.dtype = scale, dtype
        self.blocked = height % 4 == 0 and width % 4 == 0
        a, b, c = channels
        self.first = nn.Conv2d(frames, a, 8, stride=4)
        self.second = nn.Conv2d(a, b, 4, stride=2)
        self.third = nn.Conv2d(b, c, 3)
        h, w = ((height - 8) // 4 + 1, (width - 8) // 4 + 1)
        h2, w2 = ((h - 4) // 2 + 1, (w - 4) // 2 + 1)
        self.relus = relus(norm, (a, h, w), (b, h2, w2), (c, h2 - 2, w2 - 2))
        outputs = {self.first: h * w, self.second: h2 * w2, self.third: (h2 - 2) * (w2 - 2)}
        self._row_work = work_of(outputs)
        self.dense = dense_layers((c * (h2 - 2) * (w2 - 2), *hidden), norm=norm)

    def forward(self, observation: Tensor) -> Tensor:
        convolutions = (self.first, self.second, self.third, self.relus)
        features: Tensor = self.dense(
            in_shares(self._convolved, observation, convolutions, row_work=self._row_work)
        )
        return features.float()

    def _convolved(self, observation: Tensor) -> Tensor:
        first, second, third = self.relus
        x = first(self._first(observation))
        x = second(convolved(x, self.second.weight, self.second.bias, stride=2))
        x = third(convolved(x, self.third.weight, self.third.bias))
        flat: Tensor = x.permute(0, 2, 3, 1).flatten(1)  # no copy: channels-last
        return flat

    def _first(self, observation: Tensor) -> Tensor:
        if not self.blocked:
            image = to_float(observation, self.scale).to(self.dtype)
            image = image.contiguous(memory_format=torch.channels_last)
            return convolved(image, self.first.weight, self.first.bias, stride=4)
        # Scaling the kernel is cheaper than scaling the image.
        scale = self.scale / 255 if observation.dtype == torch.uint8 else self.scale
        kernel = blocks_of_kernel(self.first.weight) * scale
        return convolved(blocks_of_image(observation, self.dtype), kernel, self.first.bias)


def blocks_of_image(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[b, c, 4h, 4w] to [b, 16c, h, w], channels-last: a 4x4 block of pixels becomes channels.

    Both precisions hold bytes exactly.
    """
    b, c, height, width = image.shape
    h, w = height // 4, width // 4
    if image.dtype == torch.uint8:  # four neighbouring bytes move as one int32
        words = image.contiguous().view(torch.int32).view(b, c, h, 4, w)
        blocks = words.permute(0, 2, 4, 1, 3).contiguous().view(torch.uint8)
    else:
        blocks = image.reshape(b, c, h, 4, w, 4).permute(0, 2, 4, 1, 3, 5)
    return blocks.reshape(b, h, w, 16 * c).to(dtype).permute(0, 3, 1, 2)


def blocks_of_kernel(kernel: Tensor) -> Tensor:
    """[o, c, 8, 8] to [o, 16c, 2, 2], in the channel order of `blocks_of_image`."""
    o, c, _, _ = kernel.shape
    blocks = kernel.reshape(o, c, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5)
    return blocks.reshape(o, 2, 2, 16 * c).permute(0, 3, 1, 2)


class Small(nn.Module):
    """Two 3x3 convolutions and a dense layer, for boards and small images."""

    def __init__(
        self,
        shape: tuple[int, ...],
        channels: Sequence[int],
        hidden: Sequence[int],
        *,
        scale: float,
        norm: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        frames, height, width = shape
        self.scale, self.dtype = scale, dtype
        a, b = channels
        self.first = nn.Conv2d(frames, a, 3, padding=1)
        self.second = nn.Conv2d(a, b, 3, padding=1)
        self.relus = relus(norm, (a, height, width), (b, height, width))
        self._row_work = work_of(dict.fromkeys((self.first, self.second), height * width))
        self.dense = dense_layers((b * height * width, *hidden), norm=norm)

    def forward(self, observation: Tensor) -> Tensor:
        convolutions = (self.first, self.second, self.relus)
        features: Tensor = self.dense(
            in_shares(self._convolved, observation, convolutions, row_work=self._row_work)
        )
        return features.float()

    def _convolved(self, observation: Tensor) -> Tensor:
        first, second = self.relus
        x = to_float(observation, self.scale).to(self.dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        x = first(convolved(x, self.first.weight, self.first.bias, padding=1))
        x = second(convolved(x, self.second.weight, self.second.bias, padding=1))
        flat: Tensor = x.permute(0, 2, 3, 1).flatten(1)
        return flat
