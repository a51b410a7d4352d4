"""Discrete observations for a network: each number becomes one-hot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.networks.closed import InputLayer, Layer, layers_of
from manyhands.types import Array


class OneHot(nn.Module):
    """A torso for [batch, numbers]. Number i has `counts[i]` values. The torso gets float32
    [batch, sum(counts)].
    """

    def __init__(self, torso: nn.Module, counts: Sequence[int]) -> None:
        super().__init__()
        self.torso = torso
        self._width = sum(counts)
        self._offsets = np.cumsum(counts) - np.array(counts)
        self._on_device = torch.from_numpy(self._offsets)

    def forward(self, observation: Tensor) -> Tensor:
        if self._on_device.device != observation.device:
            self._on_device = self._on_device.to(observation.device)
        row = observation.new_zeros((len(observation), self._width), dtype=torch.float32)
        row.scatter_(1, observation.long() + self._on_device, 1.0)
        features: Tensor = self.torso(row)
        return features

    def closed_layers(self) -> list[Layer]:
        return [OneHotInput(self._width, self._offsets), *layers_of(self.torso)]


class OneHotInput(InputLayer):
    """The same in closed form."""

    def __init__(self, width: int, offsets: Array) -> None:
        self._width, self._offsets = width, offsets

    def forward(self, x: Array) -> Array:
        row = np.zeros((len(x), self._width), np.float32)
        np.put_along_axis(row, x + self._offsets, np.float32(1), 1)
        return row
