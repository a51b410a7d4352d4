"""Losses that families of algorithms share: one number a sample. The learner averages them.

Each function also returns the slope: the derivative of the loss. A network's backward pass starts
from it, so autograd need not follow the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor


def huber(error: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error up to an error of 1, linear beyond (Mnih et al. 2015 clip there)."""
    slope = error.clamp(-1, 1)
    return slope * (error - 0.5 * slope), slope


def half_square(error: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error."""
    return 0.5 * error.square(), error


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability times the advantage, negated; the slope is by the log-probability."""
    return -advantage * log_prob, -advantage


def clipped_objective(
    log_ratio: Tensor, advantage: Tensor, clip: float
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's objective (Schulman et al. 2017), negated; its slope by the log-probability; and 1 for
    samples outside the clip range.

    Where the clipped term is the smaller one, the objective is constant.
    """
    ratio = log_ratio.exp()
    plain, near = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    slope = torch.where(plain <= near, -plain, 0.0)
    return -torch.minimum(plain, near), slope, ((ratio - 1).abs() > clip).float()


def normalized(advantage: Tensor) -> Tensor:
    """To mean 0 and standard deviation 1. A single advantage stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
