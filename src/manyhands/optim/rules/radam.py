"""Rectified Adam (Liu et al. 2020)."""

from __future__ import annotations

import math

from torch import Tensor

from manyhands.optim.config import Config
from manyhands.optim.rules import Slots
from manyhands.optim.rules.adam import new_slots as new_slots


def step(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Adam that ignores the second moment until its variance is small enough."""
    slots["count"] += 1
    t, beta1, beta2 = float(slots["count"]), config.beta1, config.beta2
    mean = slots["mean"].lerp_(gradient, 1 - beta1)
    square = slots["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    rate = lr / (1 - beta1**t)
    if length <= 5:  # torch's threshold; the paper's is 4
        vector.add_(mean, alpha=-rate)
        return
    trust = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    scale = rate * math.sqrt(trust * (1 - beta2**t))
    vector.addcdiv_(mean, square.sqrt().add_(config.eps), value=-scale)
