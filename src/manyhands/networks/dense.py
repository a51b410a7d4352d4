"""A dense layer whose weight gradient is added where it belongs, without a copy on the way.

torch computes the gradient of a dense layer's weight into new memory and then adds it to
``weight.grad``. For the 3136 x 512 layer of the Nature network that is 6.4 MB of fresh pages and a
second pass over them at every update. Here the product is added to ``weight.grad`` directly. Where
there is no ``weight.grad`` yet, or the layer is small, it does what torch does. What comes in
bfloat16 is multiplied in it, and the weight is rounded to it once for as long as nobody changes it.

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
    _told = False  # whether somebody says when the weight has changed
    _rounded: Tensor | None = None  # the weight in another precision, as it was when last told

    @property
    def large(self) -> bool:
        return self.weight.numel() >= LARGE

    def changed(self) -> None:
        """The weight may be another from now on, and stays as it is until this is said again."""
        self._told, self._rounded = True, None

    def forward(self, input: Tensor) -> Tensor:  # the name nn.Linear gives it
        learns = torch.is_grad_enabled()
        if not self.large or input.dim() != 2 or (learns and self.weight.grad is None):
            return F.linear(input, _as(input, self.weight), _as(input, self.bias))
        if not learns:
            return product(input, self._weight_in(input.dtype), self.bias)
        result: Tensor = _InPlaceGradient.apply(input, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return result

    def _weight_in(self, dtype: torch.dtype) -> Tensor:
        """Rounded once for as long as it stays what it is, if that is known."""
        if dtype != torch.bfloat16:
            return self.weight
        if self._rounded is None or not self._told:
            with torch.inference_mode(mode=False):  # who learns needs it too
                self._rounded = self.weight.detach().to(dtype)
        return self._rounded


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.t() + bias``."""
    bias = _as(x, bias)
    if x.is_cpu and FEWEST <= len(x) <= MOST:
        return torch.addmm(bias[:, None], weight, x.t()).t().contiguous()
    return torch.addmm(bias, x, weight.t())


def _as(x: Tensor, parameter: Tensor) -> Tensor:
    return parameter.to(x.dtype) if x.dtype == torch.bfloat16 else parameter


class _InPlaceGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: Dense) -> Tensor:
        multiplied = layer._weight_in(x.dtype)
        ctx.save_for_backward(x, multiplied)
        ctx.weight_grad, ctx.bias_grad, ctx.layer = weight.grad, bias.grad, layer
        return product(x, multiplied, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        _add_product(grad.t(), x, ctx.weight_grad, blank=ctx.layer.blank)
        ctx.layer.blank = False
        ctx.bias_grad.add_(grad.sum(0))
        return (grad @ weight if ctx.needs_input_grad[0] else None), None, None, None


def _add_product(a: Tensor, b: Tensor, into: Tensor, *, blank: bool) -> None:
    if a.dtype == into.dtype:
        into.addmm_(a, b, beta=0 if blank else 1)
    elif blank:
        into.copy_(a @ b)
    else:
        into.add_(a @ b)
