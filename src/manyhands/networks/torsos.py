"""Torsos: observations in, features out.

A torso is called with raw observations (uint8 pixels are scaled to [0, 1] here) and returns
``[b, features]``. A user's own (``--network my.py:Net``) is any nn.Module class whose constructor
takes the observation's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.networks import Config
from manyhands.networks.dense import Dense
from manyhands.networks.quick import Passes, chain
from manyhands.types import Array, BadRequest

UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
NATURE_SMALLEST = 36  # pixels a side: below that the three convolutions leave nothing


def make(config: Config, shape: tuple[int, ...], *, scale: float) -> nn.Module:
    """The built-in torso of that name for observations of that shape."""
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


def only_float32(config: Config, what: str) -> None:
    if DTYPES[config.precision] != torch.float32:
        raise BadRequest(
            f"--network.precision {config.precision} is for nature and small, not for {what}",
            "use --network.precision auto",
        )


def _channels(config: Config, own: tuple[int, ...]) -> tuple[int, ...]:
    """The convolutions' widths that were asked for, or the torso's own."""
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
    """float32; bytes become [0, 1]."""
    factor = scale / 255 if pixels_or_numbers.dtype == torch.uint8 else scale
    floats = pixels_or_numbers.to(torch.float32)
    return floats if factor == 1 else floats * factor


def convolved(
    image: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """In the image's own precision, whatever the layer's is."""
    bias = None if bias is None else bias.to(image.dtype)
    return F.conv2d(image, weight.to(image.dtype), bias, stride=stride, padding=padding)


def dense_layers(sizes: Sequence[int], *, norm: bool) -> nn.Sequential:
    """Dense, ReLU, Dense, ReLU, … with a layer norm before each ReLU if asked for."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [Dense(inputs, outputs), *([nn.LayerNorm(outputs)] if norm else [])]
        layers += [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class NormReLU(nn.LayerNorm):
    """Layer norm over all of a channels-last image, as it lies, and ReLU: nothing is copied.

    The ReLU is done in place before the view is turned back: in place on a view is slow.
    """

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__((height, width, channels))

    def forward(self, image: Tensor) -> Tensor:
        normed = super().forward(image.permute(0, 2, 3, 1))
        return F.relu(normed, inplace=True).permute(0, 3, 1, 2)


def relus(norm: bool, *images: tuple[int, int, int]) -> nn.ModuleList:
    """One for each image of that many channels, rows and columns; with a norm before, if asked."""
    return nn.ModuleList(NormReLU(*image) if norm else nn.ReLU(inplace=True) for image in images)


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
    """The torso of Mnih et al. 2015: three convolutions and a dense layer, ReLU.

    Nothing differs but the order of the arithmetic: on heights and widths divisible by four the
    first layer, 8x8 with stride 4, is computed as 2x2 with stride 1 on blocks of 4x4 pixels, and
    everything runs channels-last, which is what CPUs are fast at; and, where `dtype` is bfloat16,
    the precision: parameters, their gradients and what heads do stay float32.
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
        self.dense = dense_layers((c * (h2 - 2) * (w2 - 2), *hidden), norm=norm)

    def forward(self, observation: Tensor) -> Tensor:
        first, second, third = self.relus
        x = first(self._first(observation))
        x = second(convolved(x, self.second.weight, self.second.bias, stride=2))
        x = third(convolved(x, self.third.weight, self.third.bias))
        features: Tensor = self.dense(x.permute(0, 2, 3, 1).flatten(1))  # no copy: channels-last
        return features.float()

    def _first(self, observation: Tensor) -> Tensor:
        if not self.blocked:
            image = to_float(observation, self.scale).to(self.dtype)
            image = image.contiguous(memory_format=torch.channels_last)
            return convolved(image, self.first.weight, self.first.bias, stride=4)
        # The scale goes into the small kernel, not into the large image.
        scale = self.scale / 255 if observation.dtype == torch.uint8 else self.scale
        kernel = blocks_of_kernel(self.first.weight) * scale
        return convolved(blocks_of_image(observation, self.dtype), kernel, self.first.bias)


def blocks_of_image(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[b, c, 4h, 4w] as [b, 16c, h, w], channels-last: each 4x4 block of pixels becomes channels.

    Bytes are exact in either precision.
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
    """[o, c, 8, 8] as [o, 16c, 2, 2], in the channel order of `blocks_of_image`."""
    o, c, _, _ = kernel.shape
    blocks = kernel.reshape(o, c, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5)
    return blocks.reshape(o, 2, 2, 16 * c).permute(0, 3, 1, 2)


class Small(nn.Module):
    """Two 3x3 convolutions and a dense layer, for boards and images of some ten pixels a side."""

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
        self.dense = dense_layers((b * height * width, *hidden), norm=norm)

    def forward(self, observation: Tensor) -> Tensor:
        first, second = self.relus
        x = to_float(observation, self.scale).to(self.dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        x = first(convolved(x, self.first.weight, self.first.bias, padding=1))
        x = second(convolved(x, self.second.weight, self.second.bias, padding=1))
        features: Tensor = self.dense(x.permute(0, 2, 3, 1).flatten(1))
        return features.float()
