"""A network and the running mean of its parameters (Polyak and Juditsky 1992).

Q-values change with every update, and the action that looks best changes with them. The mean of the
parameters changes slowly: its greedy policy does not jump between two evaluations.

The means are buffers, so checkpoints hold them and evaluations have them.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn


class Average(nn.Module):
    def __init__(self, network: nn.Module, updates: int) -> None:
        """`updates`: how many of the newest parameters count; in the beginning all."""
        super().__init__()
        self.network, self._updates = network, updates
        self.register_buffer("count", torch.zeros(1))
        mean = deepcopy(network).requires_grad_(False)
        self._kept = (mean,)  # a tuple: its parameters are no parameters of this module
        for number, parameter in enumerate(mean.parameters()):
            self.register_buffer(f"mean_{number}", parameter.data)

    @property
    def mean(self) -> nn.Module:
        return self._kept[0]

    @torch.no_grad()
    def follow(self) -> None:
        """Call it after every update."""
        count = self.get_buffer("count")
        count.add_(1).clamp_(max=self._updates)
        rate = 1 / float(count)
        for mean, newest in zip(self.mean.parameters(), self.network.parameters(), strict=True):
            mean.lerp_(newest, rate)
