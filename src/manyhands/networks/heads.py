"""Heads: Q-values, policies and values from a torso's features."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.networks.closed import Chain, Passes, chain
from manyhands.types import Array, State, restored

SQRT2 = 2**0.5  # gain before a ReLU: keeps the scale of the activations
FLAT = 0.01  # gain of the policy layer: all actions are about as likely at first


class QNetwork(nn.Module):
    """A torso and one dense layer: the value of every action."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = torso
        self.head = nn.Linear(features, actions)

    def forward(self, observation: Tensor) -> Tensor:
        values: Tensor = self.head(self.torso(observation))
        return values

    def closed(self) -> Passes:
        return OneOutput(chain(self.torso, self.head))


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

    def closed(self) -> Passes:
        return DuelingOutput(chain(self.torso), chain(self.value), chain(self.advantage))


class PolicyNetwork(nn.Module):
    """A torso and one dense layer: the logit of every action."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = orthogonal(torso, SQRT2)
        self.policy = orthogonal(nn.Linear(features, actions), FLAT)

    def forward(self, observation: Tensor) -> Tensor:
        logits: Tensor = self.policy(self.torso(observation))
        return logits

    def closed(self) -> Passes:
        return OneOutput(chain(self.torso, self.policy))


class ValueNetwork(nn.Module):
    """A torso and one dense layer: the observation's value."""

    def __init__(self, torso: nn.Module, features: int) -> None:
        super().__init__()
        self.torso = orthogonal(torso, SQRT2)
        self.value = orthogonal(nn.Linear(features, 1), 1.0)

    def forward(self, observation: Tensor) -> Tensor:
        value: Tensor = self.value(self.torso(observation)).squeeze(1)
        return value

    def closed(self) -> Passes:
        return OneNumber(chain(self.torso, self.value))


class ActorCritic(nn.Module):
    """One torso, two heads: the logits of the actions and the observation's value."""

    def __init__(self, torso: nn.Module, features: int, actions: int) -> None:
        super().__init__()
        self.torso = orthogonal(torso, SQRT2)
        self.policy = orthogonal(nn.Linear(features, actions), FLAT)
        self.value = orthogonal(nn.Linear(features, 1), 1.0)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.torso(observation)
        return self.policy(features), self.value(features).squeeze(1)

    def closed(self) -> Passes:
        return TwoOutputs(chain(self.torso), chain(self.policy), chain(self.value))


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
    return nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, outputs)
    )


def features_of(torso: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The number of features that a torso returns, found by trying it.

    Leaves the torso in evaluation mode: batch norm cannot learn from one observation.
    """
    torso.eval()
    with torch.no_grad():
        features: Tensor = torso(torch.zeros((1, *shape), dtype=dtype))
    return features.shape[1]


def arrays_of(module: nn.Module) -> State:
    return {name: value.cpu().numpy().copy() for name, value in module.state_dict().items()}


def load_arrays(module: nn.Module, arrays: State) -> None:
    tensors = {
        name: torch.from_numpy(np.array(restored.finite(array, name)))
        for name, array in arrays.items()
    }
    module.load_state_dict(tensors)


# --- The same in closed form --------------------------------------------------------------------


class OneOutput:
    """Values of the actions, or logits."""

    def __init__(self, layers: Chain) -> None:
        self._layers, self.takes = layers, layers.takes

    def forward(self, x: Array) -> tuple[Array]:
        return (self._layers.forward(x),)

    def backward(self, *gradients: Array) -> None:
        self._layers.backward(gradients[0], to_input=False)


class OneNumber(OneOutput):
    """One number a row."""

    def forward(self, x: Array) -> tuple[Array]:
        return (self._layers.forward(x)[:, 0],)

    def backward(self, *gradients: Array) -> None:
        super().backward(gradients[0][:, None])


class TwoOutputs:
    """Logits and one number a row, from the same features."""

    def __init__(self, torso: Chain, policy: Chain, value: Chain) -> None:
        self._torso, self._policy, self._value = torso, policy, value
        self.takes = torso.takes

    def forward(self, x: Array) -> tuple[Array, Array]:
        features = self._torso.forward(x)
        return self._policy.forward(features), self._value.forward(features)[:, 0]

    def backward(self, *gradients: Array) -> None:
        logits, value = gradients
        features = self._policy.backward(logits, to_input=True)
        features += self._value.backward(value[:, None], to_input=True)
        self._torso.backward(features, to_input=False)


class DuelingOutput:
    """Q = V + A - mean(A)."""

    def __init__(self, torso: Chain, value: Chain, advantage: Chain) -> None:
        self._torso, self._value, self._advantage = torso, value, advantage
        self.takes = torso.takes

    def forward(self, x: Array) -> tuple[Array]:
        features = self._torso.forward(x)
        added = self._advantage.forward(features)
        mean = added.sum(1, keepdims=True) / np.float32(added.shape[1])
        return (self._value.forward(features) + added - mean,)

    def backward(self, *gradients: Array) -> None:
        (values,) = gradients
        total = values.sum(1, keepdims=True)
        added = values - total / np.float32(values.shape[1])
        features = self._value.backward(total, to_input=True)
        features += self._advantage.backward(added, to_input=True)
        self._torso.backward(features, to_input=False)
