"""A dense layer whose weight gradient is added where it belongs, without a copy on the way.

torch computes the gradient of a dense layer's weight into new memory and then adds it to
``weight.grad``. For the 3136 x 512 layer of the Nature network that is 6.4 MB of fresh pages and a
second pass over them at every update. Here the product is added to ``weight.grad`` directly. Where
there is no ``weight.grad`` yet, or the layer is small, it does what torch does.

Of eight to fifty rows the product is computed transposed, which takes up to three tenths less time
(``benchmarks/dense.py``).

Who clears gradients may set `blank` instead of writing zeros: the product then replaces what is
there, whatever it is. What is still blank after the backward pass was not reached, and is zero.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 1 << 18  # weights; below that the detour through Python costs more than it saves
FEWEST, MOST = 8, 48  # rows that are multiplied transposed; benchmarks/results/dense.json


class Dense(nn.Linear):
    """nn.Linear, with the same parameters, initial values and results."""

    blank = False  # what `weight.grad` holds is to be replaced, not added to

    @property
    def large(self) -> bool:
        return self.weight.numel() >= LARGE

    def forward(self, input: Tensor) -> Tensor:  # the name nn.Linear gives it
        if not self.large or input.dim() != 2:
            return F.linear(input, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return product(input, self.weight, self.bias)
        if self.weight.grad is None:
            return F.linear(input, self.weight, self.bias)
        result: Tensor = _InPlaceGradient.apply(input, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return result


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.t() + bias``."""
    if x.is_cpu and FEWEST <= len(x) <= MOST:
        return torch.addmm(bias[:, None], weight, x.t()).t().contiguous()
    return torch.addmm(bias, x, weight.t())


class _InPlaceGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: Dense) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight_grad, ctx.bias_grad, ctx.layer = weight.grad, bias.grad, layer
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        ctx.weight_grad.addmm_(grad.t(), x, beta=0 if ctx.layer.blank else 1)
        ctx.layer.blank = False
        ctx.bias_grad.add_(grad.sum(0))
        return (grad @ weight if ctx.needs_input_grad[0] else None), None, None, None
