"""Lock: one vector, one optimizer, and a lock around every pull and push.

A push computes the step into a second copy of the learning state. Row `version % 2` is the current
copy, so raising the version makes the step valid. A worker killed in the middle of a step leaves
nothing half applied, and the kernel frees its lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Layout, Ledger, load, saved
from manyhands.types import Backend, Model, Options, Parameters, State, Strategy, restored
from manyhands.types.communication import Sharing


@dataclass(frozen=True)
class Config(Options):
    """No options."""

    one_vector: ClassVar[bool] = True
    sharing = Sharing(locks="vector")


class Lock(Strategy, Parameters):
    """Strategy and parameters in one: every learner works on the same memory."""

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
        self._layout = Layout(optimizer, vector, parts)
        self._version = backend.allocate((1,), np.dtype(np.int64))
        self._lock = backend.lock()
        self._index = 0
        first = self._layout.first
        self._states = backend.share(torch.stack([first, first]))  # one row is current

    def _optimizers(self, row: int) -> dict[str, optim.PartOptimizer]:
        """Optimizers of this row's vector and state."""
        return self._layout.optimizers(self._vector(row), self._layout.memory(self._states[row]))

    def _vector(self, row: int) -> Tensor:
        return self._layout.vector(self._states[row])

    def join(self, model: Model, index: int) -> Lock:  # noqa: ARG002
        self._index = index
        self._steps = [self._optimizers(0), self._optimizers(1)]
        return self

    def pull(self, model: Model) -> int:
        with self._lock:
            version = int(self._version[0])
            model.vector.copy_(self._vector(version % 2))
        return version

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        with self._lock:
            now = int(self._version[0])
            current, following = now % 2, (now + 1) % 2
            self._states[following].copy_(self._states[current])
            self._steps[following][part].step(gradient, lr)
            self._version[0] = now + 1
            self.ledger.applied(self._index, now - version)

    def newest(self) -> Tensor:
        """A copy, because the push after the next writes to this row."""
        with self._lock:
            return self._vector(self.version() % 2).clone()

    def version(self) -> int:
        return int(self._version[0])

    def state(self) -> State:
        with self._lock:
            version = self.version()
            optimizers = saved(self._optimizers(version % 2))
            return {"version": version, "optimizers": optimizers, "own": {}}

    def restore(self, vector: Tensor, state: State) -> None:
        row = restored.count(state, "version") % 2
        self._vector(row).copy_(vector)
        load(self._optimizers(row), state["optimizers"])
        self._version[0] = restored.count(state, "version")


make = Lock
