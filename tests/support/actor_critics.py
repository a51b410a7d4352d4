"""Small actor-critic algorithms, and their outputs computed by plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from manyhands.types import EnvSpec

SPEC = EnvSpec("test", lanes=2, frame_shape=(3,), frame_dtype="float32", stack=1, actions=4)


def make(module: Any, **values: Any) -> Any:
    torch.manual_seed(0)
    made = module.make(module.Config(**values), spec=SPEC, torso=lambda: nn.Linear(3, 8))
    with torch.no_grad():  # policies that are sure of something
        for parameter in (p for m in made.modules.values() for p in m.parameters()):
            parameter.add_(torch.randn_like(parameter))
    return made


def close(number: float) -> Any:
    return pytest.approx(number, rel=1e-4, abs=1e-5)


def chances(made: Any, observation: torch.Tensor) -> tuple[list[float], float]:
    with torch.no_grad():
        logits, value = made.networks.both(observation[None])
    odds = [math.exp(float(x)) for x in logits[0]]
    return [x / sum(odds) for x in odds], float(value[0])
