"""Dense layers, for vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from manyhands.networks.closed import Layer, Numbers, layers_of
from manyhands.networks.config import Config
from manyhands.networks.layers import dense_layers, to_float, weights
from manyhands.networks.torsos import Shape, only_float32

HIDDEN = (256, 256)


def fits(shape: Shape) -> bool:  # noqa: ARG001
    return True


def is_first_choice(shape: Shape) -> bool:
    return len(shape) != 3


def make(config: Config, shape: Shape, *, scale: float) -> nn.Module:
    only_float32(config, "the torso mlp")
    return MLP(shape, config.hidden or HIDDEN, scale=scale, norm=config.norm == "layer")


def size(config: Config, shape: Shape) -> tuple[int, int]:
    hidden = config.hidden or HIDDEN
    return weights((math.prod(shape), *hidden)), hidden[-1]


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

    def closed_layers(self) -> list[Layer]:
        return [Numbers(self.scale), *layers_of(self.layers)]
