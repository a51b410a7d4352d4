"""Adam (Kingma and Ba 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.optim.config import Config
from manyhands.optim.rules import Slots


def new_slots(config: Config, vector: Tensor) -> Slots:  # noqa: ARG001
    count = torch.zeros((), device=vector.device)
    return {"mean": torch.zeros_like(vector), "square": torch.zeros_like(vector), "count": count}


def step(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """For a small network the overhead of torch.optim costs as much as a step, so this calls
    torch's kernel directly.
    """
    slots["count"] += 1
    torch._fused_adam_(
        [vector],
        [gradient],
        [slots["mean"]],
        [slots["square"]],
        [],
        [slots["count"]],
        lr=lr,
        beta1=config.beta1,
        beta2=config.beta2,
        weight_decay=0.0,
        eps=config.eps,
        amsgrad=False,
        maximize=False,
    )
