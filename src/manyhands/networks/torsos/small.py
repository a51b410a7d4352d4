"""Two small convolutions, for boards and small images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from manyhands.networks.config import Config
from manyhands.networks.layers import convolved, dense_layers, relus, to_float, weights, work_of
from manyhands.networks.shared_pass import in_shares
from manyhands.networks.torsos import DTYPES, Shape, channels_of, nature

CHANNELS, HIDDEN = (16, 32), (128,)


def fits(shape: Shape) -> bool:
    return len(shape) == 3


def is_first_choice(shape: Shape) -> bool:
    return fits(shape) and not nature.fits(shape)


def make(config: Config, shape: Shape, *, scale: float) -> nn.Module:
    channels, hidden = channels_of(config, CHANNELS), config.hidden or HIDDEN
    norm, dtype = config.norm == "layer", DTYPES[config.precision]
    return Small(shape, channels, hidden, scale=scale, norm=norm, dtype=dtype)


def size(config: Config, shape: Shape) -> tuple[int, int]:
    channels, hidden = config.channels or CHANNELS, config.hidden or HIDDEN
    pairs = zip(pairwise((shape[0], *channels)), (3, 3), strict=False)
    convolutions = sum(a * b * kernel**2 for (a, b), kernel in pairs)
    inputs = channels[-1] * math.prod(shape[1:])
    return convolutions + weights((inputs, *hidden)), hidden[-1]


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
