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


class DuelingNetwork(nn.Module):
    """A torso and two streams: the observation's value, and what each action adds to the mean one.

    Wang et al. 2016, equation 9: Q = V + A - mean of A. There each stream has a dense layer of its
    own on the convolutions' features; here the torso's last dense layer is shared, and each stream
    adds one half as wide. The gradient into the torso is not scaled by 1/sqrt(2) as theirs is.
    """

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = torso
        self.value = _stream(features, 1)
        self.advantage = _stream(features, actions)

    def forward(self, observation: Tensor) -> Tensor:
        features = self.torso(observation)
        advantage: Tensor = self.advantage(features)
        values: Tensor = self.value(features) + advantage - advantage.mean(1, keepdim=True)
        return values


def _stream(features: int, outputs: int) -> nn.Module:
    hidden = max(1, features // 2)
    return nn.Sequential(Dense(features, hidden), nn.ReLU(inplace=True), Dense(hidden, outputs))


def features_of(torso: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many features the torso gives: found by trying, so that nobody need declare it."""
    with torch.no_grad():
        features: Tensor = torso(torch.zeros((1, *shape), dtype=dtype))
    if features.dim() != 2:
        raise TypeError(f"the torso returned shape {tuple(features.shape)}, not [batch, features]")
    return features.shape[1]
