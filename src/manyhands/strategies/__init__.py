"""How a gradient reaches the shared parameters: one file per strategy; here what they count by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from manyhands import optim
from manyhands.types import Array, Backend, State

BINS = 256  # staleness beyond that is counted as that


class Ledger:
    """Staleness of every gradient applied, and how many were dropped. One writer a row."""

    def __init__(self, backend: Backend, writers: int) -> None:
        self._applied = backend.allocate((writers, BINS), np.dtype(np.int64))
        self._dropped = backend.allocate((writers,), np.dtype(np.int64))

    def applied(self, writer: int, staleness: int) -> None:
        self._applied[writer, min(max(staleness, 0), BINS - 1)] += 1

    def dropped(self, writer: int) -> None:
        self._dropped[writer] += 1

    def staleness(self) -> tuple[float, float, int]:
        counts = self._applied.sum(0)
        total = int(counts.sum())
        if not total:
            return 0.0, 0.0, int(self._dropped.sum())
        mean = float((counts * np.arange(BINS)).sum() / total)
        late = int(np.searchsorted(counts.cumsum(), 0.95 * total))
        return mean, float(late), int(self._dropped.sum())


def shared_slots(
    backend: Backend, config: optim.Config, vector: Tensor, parts: Mapping[str, slice]
) -> dict[str, optim.Slots]:
    """What the optimizers of all parts remember, in memory every worker sees."""
    return {
        part: {
            name: backend.share(slot)
            for name, slot in optim.new_slots(config, vector[where]).items()
        }
        for part, where in parts.items()
    }


def saved(optimizers: Mapping[str, optim.PartOptimizer]) -> State:
    return {part: optimizer.state() for part, optimizer in optimizers.items()}


def load(optimizers: Mapping[str, optim.PartOptimizer], state: State) -> None:
    for part, optimizer in optimizers.items():
        optimizer.restore(state.get(part, {}))


def total(counters: Array) -> int:
    return int(counters.sum())
