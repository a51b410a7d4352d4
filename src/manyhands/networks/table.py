"""A table of values: one row for each discrete observation, one column for each action."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.networks.closed import Passes, gradient_of
from manyhands.types import Array


class Table(nn.Module):
    """The index of a row is the numbers of the observation times `strides`."""

    def __init__(self, rows: int, strides: Sequence[int], actions: int, first: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((rows, actions), first))
        self._strides = np.array(strides)
        self._on_device = torch.from_numpy(self._strides)

    def index(self, observation: Tensor) -> Tensor:
        """[batch] the row of each observation."""
        if observation.shape[1] == 1:
            return observation[:, 0].long()
        if self._on_device.device != observation.device:
            self._on_device = self._on_device.to(observation.device)
        return (observation.long() * self._on_device).sum(1)

    def forward(self, observation: Tensor) -> Tensor:
        return self.values[self.index(observation)]

    def closed(self) -> Passes:
        return TablePasses(self.values, self._strides)


class TablePasses:
    """The same in closed form."""

    def __init__(self, values: nn.Parameter, strides: Array) -> None:
        self._values, self._gradient = values.detach().numpy(), gradient_of(values)
        self._strides = strides
        self._rows = np.zeros(0, np.int64)

    def takes(self, x: Array) -> bool:
        return x.ndim == 2

    def forward(self, x: Array) -> tuple[Array]:
        self._rows = x[:, 0] if x.shape[1] == 1 else x @ self._strides
        return (self._values[self._rows],)

    def backward(self, *gradients: Array) -> None:
        self._gradient.fill(0)
        np.add.at(self._gradient, self._rows, gradients[0])
