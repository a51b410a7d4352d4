"""Adam (Kingma and Ba 2015)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyhands.maths import compiled, threads
from manyhands.optim.config import Config
from manyhands.optim.rules import Slots


def new_slots(config: Config, vector: Tensor) -> Slots:  # noqa: ARG001
    count = torch.zeros((), device=vector.device)
    return {"mean": torch.zeros_like(vector), "square": torch.zeros_like(vector), "count": count}


def step(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """For a small network the overhead of torch.optim costs as much as a step, so this calls
    a compiled loop, or torch's kernel directly.
    """
    slots["count"] += 1
    if compiled.takes(vector, gradient):
        _by_library(vector, gradient, slots, lr, config)
        return
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


def _by_library(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    count = float(slots["count"])
    arrays = vector, gradient, slots["mean"], slots["square"]
    rate = lr / (1 - config.beta1**count)
    root_of_bias = math.sqrt(1 - config.beta2**count)
    compiled.function("adam")(
        *(tensor.data_ptr() for tensor in arrays), vector.numel(),
        rate, 1 - config.beta1, config.beta2, 1 - config.beta2, config.eps, root_of_bias,
        threads.count(),
    )  # fmt: skip
