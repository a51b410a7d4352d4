"""One forward pass in pieces: each thread takes some of the observations, a few at a time.

The images of a few observations stay in the processor's cache from one layer to the next. Those of
a few hundred do not. Each piece has its own autograd graph. The gradients of the pieces are added
in a fixed order, so the sum does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.maths import threads

MOST_ROWS = 64  # of a piece
Gradients = tuple[Tensor, ...]
Pass = Callable[[Tensor], Tensor]


def in_shares(
    forward: Pass, observation: Tensor, modules: Iterable[nn.Module], *, row_work: float
) -> Tensor:
    """``forward(observation)``. `modules` hold all parameters that `forward` uses.

    `row_work`: the multiply-adds of one observation.
    """
    length = len(observation)
    rows = threads.shares(length, length * row_work) if observation.is_cpu else []
    shares = [_pieces(observation[some]) for some in rows]
    if sum(map(len, shares)) < 2:
        return forward(observation)
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if torch.is_grad_enabled() and parameters:
        result: Tensor = _Shared.apply(forward, shares, *parameters)  # type: ignore[no-untyped-call]
        return result
    outputs = threads.each([partial(_without_gradient, forward, one) for one in shares])
    return torch.cat([piece for share in outputs for piece in share])


def _pieces(share: Tensor) -> list[Tensor]:
    count = -(-len(share) // MOST_ROWS)
    return [share[some] for some in threads.cut(len(share), count)]


def _without_gradient(forward: Pass, share: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():  # each thread has its own mode
        return [forward(piece) for piece in share]


def _with_gradient(forward: Pass, share: list[Tensor]) -> list[Tensor]:
    with torch.enable_grad():
        return [forward(piece) for piece in share]


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Pass, shares: list[list[Tensor]], *parameters: Tensor) -> Tensor:
        ctx.outputs = threads.each([partial(_with_gradient, forward, share) for share in shares])
        ctx.parameters = parameters
        return torch.cat([piece.detach() for share in ctx.outputs for piece in share])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [sum(map(len, share)) for share in ctx.outputs]
        calls = [
            partial(_gradient, share, ctx.parameters, grad)
            for share, grad in zip(ctx.outputs, torch.split(grads[0], sizes), strict=True)
        ]
        return None, None, *_sum(threads.each(calls))


def _gradient(share: list[Tensor], parameters: tuple[Tensor, ...], grad: Tensor) -> Gradients:
    pieces = torch.split(grad, [len(piece) for piece in share])
    return _sum(
        torch.autograd.grad(piece, parameters, one)
        for piece, one in zip(share, pieces, strict=True)
    )


def _sum(gradients: Iterable[Gradients]) -> Gradients:
    """In order, one after the other."""
    return reduce(lambda total, more: tuple(map(torch.add, total, more)), gradients)
