"""RMSprop (Hinton 2012), plain or centered."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyhands.optim.config import Config
from manyhands.optim.rules import Slots
from manyhands.optim.rules.adagrad import add_square_and_step


def new_slots(config: Config, vector: Tensor) -> Slots:
    if config.centered:
        return {"square": torch.zeros_like(vector), "mean": torch.zeros_like(vector)}
    return {"raised": torch.zeros_like(vector).add_(config.eps / (1 - config.decay))}


def step(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Epsilon is inside the root, as in Nature DQN, A3C and IMPALA; in torch it is outside.

    E[g^2] starts at 0, as in Nature DQN's code and torch. In TensorFlow, which PAAC and IMPALA
    use, it starts at 1: the first steps are shorter by orders of magnitude.

    The state is ``raised = (E[g^2] + eps) / (1 - decay)``. A step is then AdaGrad's after a
    decay: two passes through memory instead of five.
    """
    if config.centered:
        _centered(vector, gradient, slots, lr, config)
        return
    raised = slots["raised"]
    torch.add(raised.new_tensor(config.eps), raised, alpha=config.decay, out=raised)
    add_square_and_step(vector, gradient, raised, lr / math.sqrt(1 - config.decay), 0.0)


def _centered(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Nature DQN's: g / sqrt(E[g^2] - E[g]^2 + eps)."""
    decay = config.decay
    square = slots["square"].mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
    mean = slots["mean"].mul_(decay).add_(gradient, alpha=1 - decay)
    variance = square.addcmul(mean, mean, value=-1).clamp_(min=0)
    vector.addcdiv_(gradient, variance.add_(config.eps).sqrt_(), value=-lr)
