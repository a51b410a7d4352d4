"""Losses that families of algorithms share: one number a sample. The learner averages them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def huber(value: Tensor, goal: Tensor) -> Tensor:
    """Half the squared error up to an error of 1, linear beyond (Mnih et al. 2015 clip there)."""
    return F.huber_loss(value, goal, reduction="none")


def clipped_objective(ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's objective (Schulman et al. 2017), negated; and 1 for samples outside the clip range."""
    near = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, near * advantage)
    return loss, ((ratio - 1).abs() > clip).float().detach()


def normalized(advantage: Tensor) -> Tensor:
    """To mean 0 and standard deviation 1. A single advantage stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
