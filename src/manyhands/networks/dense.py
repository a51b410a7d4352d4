"""A dense layer that adds its weight gradient in place.

torch computes the gradient of a weight in new memory and then adds it to ``weight.grad``. For the
3136 x 512 layer of the Nature network that takes 6.4 MB of fresh pages and a second pass over them
at every update. This layer adds the product to ``weight.grad`` directly. A small layer, or one
without ``weight.grad``, does what torch does.

An input in bfloat16 is multiplied in bfloat16. The weight is rounded once per change.

`maths.products` chooses the library that multiplies float32. Where that is MKL, the product of 8 to
48 rows is computed transposed, which takes up to 30 % less time (``benchmarks/dense.py``).

`blank` takes the place of filling the gradient with zeros: the product then replaces what
``weight.grad`` holds. If it is still set after the backward pass, the pass did not reach the layer
and the gradient is zero (`FlatModel.settle`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.maths import threads
from manyhands.maths.products import by_onednn, times_transposed
from manyhands.networks.closed import DenseLayer, Layer

LARGE = 1 << 18  # weights; for fewer the Python calls cost more than they save
FEWEST, MOST = 8, 48  # rows of a transposed product; benchmarks/results/dense.json


class Dense(nn.Linear):
    """nn.Linear, with the same parameters, initial values and results."""

    blank = False  # the next backward pass replaces `weight.grad`
    _reports_changes = False  # whether `changed` is called at all
    _rounded: Tensor | None = None  # the weight in bfloat16

    @property
    def large(self) -> bool:
        return self.weight.numel() >= LARGE

    def changed(self) -> None:
        """Call it at every change of the weight; between two calls the weight is constant."""
        self._reports_changes, self._rounded = True, None

    def closed_layers(self) -> list[Layer]:
        return [DenseLayer(self)]

    def forward(self, input: Tensor) -> Tensor:  # nn.Linear's name for it
        needs_gradient = torch.is_grad_enabled()
        if not self.large or input.dim() != 2 or (needs_gradient and self.weight.grad is None):
            return F.linear(input, _as(input, self.weight), _as(input, self.bias))
        if not needs_gradient:
            return product(input, self._weight_in(input.dtype), self.bias)
        result: Tensor = _InPlaceGradient.apply(input, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return result

    def _weight_in(self, dtype: torch.dtype) -> Tensor:
        """Rounded once per change if changes are reported, otherwise at every call."""
        if dtype != torch.bfloat16:
            return self.weight
        if self._rounded is None or not self._reports_changes:
            with torch.inference_mode(mode=False):  # a gradient may need it later
                self._rounded = self.weight.detach().to(dtype)
        return self._rounded


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.t() + bias``; each thread computes some of the columns."""
    columns = threads.shares(len(weight), _work(x, weight)) if x.is_cpu else [slice(None)]
    products = threads.each([partial(_product, x, weight[some], bias[some]) for some in columns])
    return products[0] if len(products) == 1 else torch.cat(products, 1)


def _work(x: Tensor, weight: Tensor) -> float:
    return len(x) * weight.numel()


@torch.no_grad()  # each thread has its own mode
def _product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    bias = _as(x, bias)
    if x.is_cpu and FEWEST <= len(x) <= MOST and not by_onednn(x):
        return torch.addmm(bias[:, None], weight, x.t()).t().contiguous()
    return times_transposed(x, weight, bias)


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
        (grad,), needs_input, blank = grads, ctx.needs_input_grad[0], ctx.layer.blank
        pieces = len(threads.shares(len(x), 2 * _work(x, weight))) if x.is_cpu else 1
        sides = zip(*(threads.cut(length, pieces) for length in (len(weight), len(x))), strict=True)

        @torch.no_grad()
        def side(columns: slice, rows: slice) -> Tensor | None:
            """Adds the weight gradient of some columns; returns the input gradient of some rows."""
            _add_product(grad[:, columns].t(), x, ctx.weight_grad[columns], blank=blank)
            return times_transposed(grad[rows], weight.t()) if needs_input else None

        results = threads.each([partial(side, *one) for one in sides])
        ctx.layer.blank = False
        ctx.bias_grad.add_(grad.sum(0))
        inputs = [one for one in results if one is not None]
        return (torch.cat(inputs) if inputs else None), None, None, None


def _add_product(a: Tensor, b: Tensor, into: Tensor, *, blank: bool) -> None:
    if a.dtype == into.dtype and not by_onednn(a):
        into.addmm_(a, b, beta=0 if blank else 1)
    elif blank:
        into.copy_(times_transposed(a, b.t()))
    else:
        into.add_(times_transposed(a, b.t()))
