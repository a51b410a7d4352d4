"""Serial: one learner, its parameters in its own process. pull: nothing; push: apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from manyhands import optim
from manyhands.types import Model, State


@dataclass(frozen=True)
class Config:
    """Nothing to choose."""


class Serial:
    def __init__(self, model: Model, optimizer: Callable[[Tensor], optim.PartOptimizer]) -> None:
        self._version = 0
        self._optimizers = {
            part: optimizer(model.vector[where]) for part, where in model.parts.items()
        }

    def pull(self, model: Model) -> int:  # noqa: ARG002  (the model's vector is the only copy)
        return self._version

    def push(self, gradient: Tensor, *, part: str, version: int, lr: float) -> None:  # noqa: ARG002
        self._optimizers[part].step(gradient, lr)
        self._version += 1

    def state(self) -> State:
        parts = {part: optimizer.state() for part, optimizer in self._optimizers.items()}
        return {"version": self._version, "optimizers": parts}

    def restore(self, state: State) -> None:
        self._version = state["version"]
        for part, optimizer in self._optimizers.items():
            optimizer.restore(state["optimizers"].get(part, {}))


make = Serial
