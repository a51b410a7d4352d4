"""Losses that families of algorithms share: one number a sample. The learner averages them.

Each function also returns the slope: the derivative of the loss. A network's backward pass starts
from it, so autograd need not follow the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]  # of the errors: the losses, their slopes


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


# --- Errors of the values of the actions taken ---------------------------------------------------


class Errors(NamedTuple):
    value: Tensor  # [b] of the action taken
    error: Tensor  # [b] what it should be, less what it is
    size: Tensor  # [b] |error|
    loss: Tensor  # [b]
    slope: Tensor  # [b] of the loss, by the error
    values: Tensor  # [b, actions]
    action: Tensor  # [b] int64

    def by_values(self, weight: Tensor) -> Tensor:
        """The gradient of the weighted sum of the losses, by `values`."""
        if _takes(self.values, self.action, self.slope, weight):
            found, rows = torch.empty_like(self.values), len(weight)
            arrays = self.action, self.slope, weight, found
            _call("td_gradient", arrays, rows, self.values.shape[1])
            return found
        each = (-self.slope * weight)[:, None]
        return torch.zeros_like(self.values).scatter_(1, self.action[:, None], each)


KNOWN: dict[Loss, int] = {half_square: 0, huber: 1}  # `td_errors` in kernels/td.cpp


def td_errors(values: Tensor, action: Tensor, goal: Tensor, loss: Loss) -> Errors:
    """`goal`: what the values of the actions taken should be.

    The compiled library makes one call of this and of the gradient, with the same bits as torch.
    """
    if loss in KNOWN and _takes(values, action, goal):
        found = torch.empty((5, len(goal)))
        _call("td_errors", (values, action, goal, found), *values.shape, KNOWN[loss])
        value, error, size, per_sample, slope = found.unbind()
        return Errors(value, error, size, per_sample, slope, values, action)
    value = values.gather(1, action[:, None]).squeeze(1)
    error = goal - value
    per_sample, slope = loss(error)
    return Errors(value, error, error.abs(), per_sample, slope, values, action)


def _call(name: str, arrays: tuple[Tensor, ...], *sizes: int) -> None:
    from manyhands.maths import compiled  # not needed to know what an algorithm computes

    compiled.function(name)(*(array.data_ptr() for array in arrays), *sizes)


def _takes(values: Tensor, action: Tensor, *others: Tensor) -> bool:
    """Autograd may follow the values of a test."""
    from manyhands.maths import compiled

    whole = action.is_contiguous() and action.dtype == torch.int64 and not values.requires_grad
    floats = all(one.dtype == torch.float32 for one in (values, *others))
    return whole and floats and compiled.takes(values, *others)
