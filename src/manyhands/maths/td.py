"""Errors of the values of the actions taken, their losses, and the gradients by all values.

The compiled library makes one call of each; it gives the same bits as torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manyhands.maths import compiled, losses

Loss = Callable[[Tensor], tuple[Tensor, Tensor]]  # of the errors: the losses, their slopes
KNOWN = {losses.half_square: 0, losses.huber: 1}  # `td_errors` in maths/kernels/td.cpp


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
            pointers = (array.data_ptr() for array in arrays)
            compiled.function("td_gradient")(*pointers, rows, self.values.shape[1])
            return found
        each = (-self.slope * weight)[:, None]
        return torch.zeros_like(self.values).scatter_(1, self.action[:, None], each)


def errors(values: Tensor, action: Tensor, goal: Tensor, loss: Loss) -> Errors:
    """`goal`: what the values of the actions taken should be."""
    if loss in KNOWN and _takes(values, action, goal):
        found = torch.empty((5, len(goal)))
        pointers = (array.data_ptr() for array in (values, action, goal, found))
        compiled.function("td_errors")(*pointers, *values.shape, KNOWN[loss])
        value, error, size, per_sample, slope = found.unbind()
        return Errors(value, error, size, per_sample, slope, values, action)
    value = values.gather(1, action[:, None]).squeeze(1)
    error = goal - value
    per_sample, slope = loss(error)
    return Errors(value, error, error.abs(), per_sample, slope, values, action)


def _takes(values: Tensor, action: Tensor, *others: Tensor) -> bool:
    """Autograd may follow the values of a test."""
    whole = action.is_contiguous() and action.dtype == torch.int64 and not values.requires_grad
    floats = all(one.dtype == torch.float32 for one in (values, *others))
    return whole and floats and compiled.takes(values, *others)
