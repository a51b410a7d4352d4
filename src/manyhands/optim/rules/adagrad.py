"""AdaGrad (Duchi et al. 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.optim.config import Config
from manyhands.optim.rules import Slots

ONE = torch.ones(())


def new_slots(config: Config, vector: Tensor) -> Slots:
    return {"total": torch.full_like(vector, config.initial)}


def step(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    add_square_and_step(vector, gradient, slots["total"], lr, config.eps)


def add_square_and_step(
    vector: Tensor, gradient: Tensor, total: Tensor, lr: float, eps: float
) -> None:
    """Adds the squared gradient to the total; steps by the gradient over the total's root."""
    if not vector.is_cpu:
        total.addcmul_(gradient, gradient)
        vector.addcdiv_(gradient, total.sqrt().add_(eps), value=-lr)
        return
    torch._fused_adagrad_(  # in one pass
        [vector],
        [gradient],
        [total],
        [ONE],
        lr=lr,
        lr_decay=0.0,
        weight_decay=0.0,
        eps=eps,
        maximize=False,
    )
