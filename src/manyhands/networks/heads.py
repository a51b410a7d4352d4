"""Heads: Q-values, policies and values from a torso's features."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.networks.dense import Dense
from manyhands.networks.forward import Passes, chain, pass_of
from manyhands.types import Array

SQRT2 = 2**0.5  # gain before a ReLU: keeps the scale of the activations
FLAT = 0.01  # gain of the policy layer: all actions are about as likely at first


class QNetwork(nn.Module):
    """A torso and one dense layer: the value of every action."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = torso
        self.head = Dense(features, actions)

    def forward(self, observation: Tensor) -> Tensor:
        values: Tensor = self.head(self.torso(observation))
        return values

    def quick(self) -> Passes:
        values = chain(self.torso, self.head)
        return lambda x: (values(x),)


class DuelingNetwork(nn.Module):
    """A torso and two streams, value and advantages: Q = V + A - mean(A).

    Wang et al. 2016, equation 9. It differs from the paper: the streams share the torso's dense
    layer and add one half as wide each; in the paper each stream has its own layer on the
    convolutions. The gradient into the torso is not scaled by 1/sqrt(2).
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

    def quick(self) -> Passes:
        torso, value, advantage = map(pass_of, (self.torso, self.value, self.advantage))

        def forward(x: Array) -> tuple[Array]:
            features = torso(x)
            added = advantage(features)
            mean = added.sum(1, keepdims=True) / np.float32(added.shape[1])
            return (value(features) + added - mean,)

        return forward


class PolicyNetwork(nn.Module):
    """A torso and one dense layer: the logit of every action."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = orthogonal(torso, SQRT2)
        self.policy = orthogonal(Dense(features, actions), FLAT)

    def forward(self, observation: Tensor) -> Tensor:
        logits: Tensor = self.policy(self.torso(observation))
        return logits

    def quick(self) -> Passes:
        logits = chain(self.torso, self.policy)
        return lambda x: (logits(x),)


class ValueNetwork(nn.Module):
    """A torso and one dense layer: the observation's value."""

    def __init__(self, torso: nn.Module, features: int) -> None:
        super().__init__()
        self.torso = orthogonal(torso, SQRT2)
        self.value = orthogonal(Dense(features, 1), 1.0)

    def forward(self, observation: Tensor) -> Tensor:
        value: Tensor = self.value(self.torso(observation)).squeeze(1)
        return value

    def quick(self) -> Passes:
        value = chain(self.torso, self.value)
        return lambda x: (value(x)[:, 0],)


class ActorCritic(nn.Module):
    """One torso, two heads: the logits of the actions and the observation's value."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = orthogonal(torso, SQRT2)
        self.policy = orthogonal(Dense(features, actions), FLAT)
        self.value = orthogonal(Dense(features, 1), 1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.torso(observation)
        return self.policy(features), self.value(features).squeeze(1)

    def quick(self) -> Passes:
        torso, policy, value = map(pass_of, (self.torso, self.policy, self.value))

        def forward(x: Array) -> tuple[Array, Array]:
            features = torso(x)
            return policy(features), value(features)[:, 0]

        return forward


M = TypeVar("M", bound=nn.Module)


def orthogonal(module: M, gain: float) -> M:
    """Orthogonal weights and zero biases, as in OpenAI baselines."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def _stream(features: int, outputs: int) -> nn.Module:
    hidden = max(1, features // 2)
    return nn.Sequential(Dense(features, hidden), nn.ReLU(inplace=True), Dense(hidden, outputs))


def features_of(torso: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The number of features that a torso returns, found by trying it.

    Leaves the torso in evaluation mode: batch norm cannot learn from one observation.
    """
    torso.eval()
    with torch.no_grad():
        features: Tensor = torso(torch.zeros((1, *shape), dtype=dtype))
    return features.shape[1]
