"""Layers that torsos share: dense ones, convolutions, norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.networks.dense import Dense


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


def weights(sizes: Sequence[int]) -> int:
    """How many weights layers have between these numbers of neurons or channels."""
    return sum(a * b for a, b in pairwise(sizes))
