"""Delayed: serial, but each gradient is applied a fixed number of updates late.

Many asynchronous learners compute gradients on old parameters. How old depends on the machine. Here
one learner has any age one asks for, and the same seed gives the same weights: an experiment on
what staleness costs. Without a delay it is `serial`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import serial
from manyhands.types import Backend, Options, State, option, restored

MOST_UPDATES = 4096
PART, VERSION = 0, 1  # columns of what is noted of a waiting gradient


@dataclass(frozen=True)
class Config(Options):
    shares_parameters = False

    updates: int = option(
        0, "updates by which each gradient is applied late", low=0, high=MOST_UPDATES
    )


class Delayed(serial.Serial):
    """Gradients wait in a ring with one row per update of delay. Push n is in row n % delay."""

    def __init__(
        self,
        config: Config,
        *,
        backend: Backend,
        vector: Tensor,
        parts: Mapping[str, slice],
        optimizer: optim.Config,
        learners: int = 1,
    ) -> None:
        super().__init__(
            serial.Config(),
            backend=backend,
            vector=vector,
            parts=parts,
            optimizer=optimizer,
            learners=learners,
        )
        self._delay, self._parts, self._names = config.updates, parts, list(parts)
        self._pushes = backend.allocate((1,), np.dtype(np.int64))
        self._gradients = backend.share(torch.zeros(self._delay, vector.numel()))
        self._notes = backend.allocate((self._delay, 2), np.dtype(np.int64))
        self._rates = backend.allocate((self._delay,), np.dtype(np.float64))

    def push(
        self, gradient: Tensor, *, part: str, version: int, lr: float, loss: float = 0.0
    ) -> None:
        if self._delay == 0:
            super().push(gradient, part=part, version=version, lr=lr, loss=loss)
            return
        row = int(self._pushes[0]) % self._delay
        if self._pushes[0] >= self._delay:
            self._apply(row)
        self._gradients[row, self._parts[part]] = gradient
        self._notes[row] = self._names.index(part), version
        self._rates[row] = lr
        self._pushes[0] += 1

    def _apply(self, row: int) -> None:
        part, version = self._names[self._notes[row, PART]], int(self._notes[row, VERSION])
        gradient = self._gradients[row, self._parts[part]]
        super().push(gradient, part=part, version=version, lr=float(self._rates[row]))

    def state(self) -> State:
        """Its own state is the ring: what waits is applied after a resume."""
        ring = {
            "pushes": int(self._pushes[0]),
            "gradients": self._gradients.numpy(force=True).copy(),
            "notes": self._notes.copy(),
            "rates": self._rates.copy(),
        }
        return super().state() | {"own": {"delayed": ring}}

    def restore(self, vector: Tensor, state: State) -> None:
        """After another strategy or with another delay nothing waits."""
        super().restore(vector, state)
        own = state["own"].get("delayed")
        if own is None or len(own["notes"]) != self._delay:
            self._pushes[0] = 0
            return
        self._notes[:] = restored.between(own, "notes", self._notes, 0, restored.MOST)
        if self._delay and self._notes[:, PART].max() >= len(self._names):
            raise ValueError("a waiting gradient belongs to a part that is not there")
        gradients = restored.array(own, "gradients", self._gradients.numpy(force=True))
        self._gradients.copy_(torch.from_numpy(np.array(gradients)))
        self._rates[:] = restored.array(own, "rates", self._rates)
        self._pushes[0] = restored.count(own, "pushes")


make = Delayed
