"""Stochastic gradient descent, with or without momentum."""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.optim.config import Config
from manyhands.optim.rules import Slots


def new_slots(config: Config, vector: Tensor) -> Slots:
    return {"velocity": torch.zeros_like(vector)} if config.momentum else {}


def step(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    if config.momentum:
        gradient = slots["velocity"].mul_(config.momentum).add_(gradient)
    vector.add_(gradient, alpha=-lr)
