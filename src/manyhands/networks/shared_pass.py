"""One forward pass shared among threads: each thread takes some of the observations.

Each share has its own autograd graph. The gradients of the shares are added in a fixed order, so
the sum does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.maths import threads

Pass = Callable[[Tensor], Tensor]


def in_shares(
    forward: Pass, observation: Tensor, modules: Iterable[nn.Module], *, row_work: float
) -> Tensor:
    """``forward(observation)``. `modules` hold all parameters that `forward` uses.

    `row_work`: the multiply-adds of one observation.
    """
    length = len(observation)
    rows = threads.shares(length, length * row_work) if observation.is_cpu else []
    if len(rows) < 2:
        return forward(observation)
    shares = [observation[some] for some in rows]
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if torch.is_grad_enabled() and parameters:
        result: Tensor = _Shared.apply(forward, shares, *parameters)  # type: ignore[no-untyped-call]
        return result
    return torch.cat(threads.each([partial(_without_gradient, forward, one) for one in shares]))


def _without_gradient(forward: Pass, share: Tensor) -> Tensor:
    with torch.no_grad():  # each thread has its own mode
        return forward(share)


def _with_gradient(forward: Pass, share: Tensor) -> Tensor:
    with torch.enable_grad():
        return forward(share)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Pass, shares: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.outputs = threads.each([partial(_with_gradient, forward, share) for share in shares])
        ctx.parameters = parameters
        return torch.cat([one.detach() for one in ctx.outputs])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [len(one) for one in ctx.outputs]
        pieces = torch.split(grads[0], sizes)
        gradients = threads.each(
            [
                partial(torch.autograd.grad, one, ctx.parameters, piece)
                for one, piece in zip(ctx.outputs, pieces, strict=True)
            ]
        )
        total = gradients[0]
        for other in gradients[1:]:
            total = tuple(a + b for a, b in zip(total, other, strict=True))
        return None, None, *total
