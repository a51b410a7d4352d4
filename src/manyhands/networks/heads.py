"""Heads: what an algorithm reads off a torso's features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manyhands.networks.dense import Dense


class QNetwork(nn.Module):
    """A torso and one dense layer: the value of every action."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = torso
        self.head = Dense(features, actions)

    def forward(self, observation: Tensor) -> Tensor:
        values: Tensor = self.head(self.torso(observation))
        return values


def features_of(torso: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many features the torso gives: found by trying, so that nobody need declare it."""
    with torch.no_grad():
        features: Tensor = torso(torch.zeros((1, *shape), dtype=dtype))
    if features.dim() != 2:
        raise TypeError(f"the torso returned shape {tuple(features.shape)}, not [batch, features]")
    return features.shape[1]
