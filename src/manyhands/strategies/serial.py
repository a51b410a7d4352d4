"""Serial: one learner, one vector. A pull does nothing, a push applies the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Ledger, load, saved, shared_slots
from manyhands.types import Backend, Model, Options, Parameters, State, Strategy, restored


@dataclass(frozen=True)
class Config(Options):
    """No options."""

    shares_parameters = False


class Serial(Strategy, Parameters):
    """Strategy and parameters in one. The vector is shared only so that main can read it."""

    def __init__(
        self,
        config: Config,  # noqa: ARG002
        *,
        backend: Backend,
        vector: Tensor,
        parts: Mapping[str, slice],
        optimizer: optim.Config,
        learners: int = 1,
    ) -> None:
        self.ledger = Ledger(backend, learners)
        self._vector = backend.share(vector)
        self._version = backend.allocate((1,), np.dtype(np.int64))
        slots = shared_slots(backend, optimizer, vector, parts)
        self._optimizers = {
            part: optim.PartOptimizer(optimizer, self._vector[where], slots[part])
            for part, where in parts.items()
        }

    def join(self, model: Model, index: int) -> Serial:  # noqa: ARG002
        model.live_in(self._vector)
        return self

    def pull(self, model: Model) -> int:  # noqa: ARG002  (the model's vector is the only copy)
        return int(self._version[0])

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        self._optimizers[part].step(gradient, lr)
        self.ledger.applied(0, int(self._version[0]) - version)
        self._version[0] += 1

    def newest(self) -> Tensor:
        return self._vector

    def version(self) -> int:
        return int(self._version[0])

    def state(self) -> State:
        return {"version": self.version(), "optimizers": saved(self._optimizers), "own": {}}

    def restore(self, vector: Tensor, state: State) -> None:
        self._vector.copy_(vector)
        self._version[0] = restored.count(state, "version")
        load(self._optimizers, state["optimizers"])


make = Serial
