"""How a gradient reaches the shared parameters: one file per strategy. This file has what several
of them use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.types import Array, Backend, State, restored

BINS = 256  # a larger staleness is counted in the last bin


def copy(source: Tensor, into: Tensor) -> None:
    """``into.copy_(source)``; by NumPy where that is faster than torch with one thread."""
    if _for_numpy(source, into):
        np.copyto(into.numpy(), source.numpy())
    else:
        into.copy_(source)


def average(one: Tensor, other: Tensor, into: Tensor) -> None:
    if _for_numpy(one, other, into):
        mean = np.add(one.numpy(), other.numpy(), out=into.numpy())
        mean *= np.float32(0.5)
    else:
        torch.add(one, other, out=into).mul_(0.5)


def _for_numpy(*tensors: Tensor) -> bool:
    """Whether all are in main memory, and torch has only one thread."""
    return torch.get_num_threads() == 1 and all(tensor.is_cpu for tensor in tensors)


class Ledger:
    """Staleness of every gradient applied, and how many were dropped. Each row has one writer."""

    def __init__(self, backend: Backend, writers: int) -> None:
        self._table = backend.table(writers, BINS + 1, np.dtype(np.int64))  # the last: dropped
        self._writers = writers
        self._own: dict[int, Array] = {}  # rows that this process writes

    def applied(self, writer: int, staleness: int) -> None:
        self._row(writer)[min(max(staleness, 0), BINS - 1)] += 1

    def dropped(self, writer: int) -> None:
        self._row(writer)[BINS] += 1

    def _row(self, writer: int) -> Array:
        if writer not in self._own:
            self._own[writer] = self._table.row(writer)
        return self._own[writer]

    def staleness(self) -> tuple[float, float, int]:
        counts, dropped = self._totals()
        total = int(counts.sum())
        if not total:
            return 0.0, 0.0, dropped
        mean = float((counts * np.arange(BINS)).sum() / total)
        p95 = int(np.searchsorted(counts.cumsum(), 0.95 * total))
        return mean, float(p95), dropped

    def _totals(self) -> tuple[Array, int]:
        totals = self._table.rows().sum(0)
        return totals[:BINS], int(totals[BINS])

    def state(self) -> State:
        applied, dropped = self._totals()
        return {"applied": applied, "dropped": dropped}

    def restore(self, state: State) -> None:
        """Puts all counts into the first row: the number of writers may have changed."""
        most = restored.MOST // BINS  # so the sum of all bins is valid as well
        applied = restored.between(state, "applied", np.zeros(BINS, np.int64), 0, most)
        for writer in range(self._writers):
            self._table.row(writer)[:] = 0
        first = self._table.row(0)
        first[:BINS], first[BINS] = applied, restored.count(state, "dropped")


def shared_slots(
    backend: Backend, config: optim.Config, vector: Tensor, parts: Mapping[str, slice], *,
    elsewhere: int | None = None,
) -> dict[str, optim.Slots]:  # fmt: skip
    """The optimizer state of all parts, in memory that every worker sees."""
    return {
        part: {
            name: backend.share(slot, elsewhere=elsewhere)
            for name, slot in optim.new_slots(config, vector[where]).items()
        }
        for part, where in parts.items()
    }


class Layout:
    """A learner's state as one row of numbers: the parameters, then the optimizer state."""

    def __init__(self, config: optim.Config, vector: Tensor, parts: Mapping[str, slice]) -> None:
        self._config, self._parts, self._numbers = config, parts, vector.numel()
        self._slots = [
            (part, name, slot)
            for part, where in parts.items()
            for name, slot in optim.new_slots(config, vector[where]).items()
        ]
        tensors = [vector, *(slot for _, _, slot in self._slots)]
        self.first = torch.cat([tensor.reshape(-1) for tensor in tensors])

    def vector(self, row: Tensor) -> Tensor:
        return row[: self._numbers]

    def memory(self, row: Tensor) -> Tensor:
        return row[self._numbers :]

    def optimizers(self, vector: Tensor, memory: Tensor) -> dict[str, optim.PartOptimizer]:
        """Optimizers that step this vector and keep their state in this memory."""
        slots: dict[str, optim.Slots] = {part: {} for part in self._parts}
        start = 0
        for part, name, like in self._slots:
            stop = start + like.numel()
            slots[part][name] = memory[start:stop].view(like.shape)
            start = stop
        return {
            part: optim.PartOptimizer(self._config, vector[where], slots[part])
            for part, where in self._parts.items()
        }


def saved(optimizers: Mapping[str, optim.PartOptimizer]) -> State:
    """The optimizer state of every part: what all strategies save, and can restore."""
    return {part: optimizer.state() for part, optimizer in optimizers.items()}


def mean(states: Sequence[State]) -> State:
    """The mean of several learners' optimizer states, for strategies that have one state."""
    return {
        part: {name: _mean([state[part][name] for state in states]) for name in states[0][part]}
        for part in states[0]
    }


def _mean(arrays: Sequence[Array]) -> Array:
    return np.asarray(np.mean(arrays, axis=0, dtype=np.float64)).astype(arrays[0].dtype)


def load(optimizers: Mapping[str, optim.PartOptimizer], state: State) -> None:
    for part, optimizer in optimizers.items():
        optimizer.restore(state.get(part, {}))


def total(counters: Array) -> int:
    return int(counters.sum())


def middle(copies: Tensor) -> Tensor:
    """The mean of the rows: the first plus the mean difference, so equal rows are their mean."""
    return copies[0] + (copies - copies[0]).mean(0)


def spread(copies: Tensor) -> float:
    """Root mean square of the rows' distances from their mean."""
    return math.sqrt(float((copies - copies.mean(0)).square().sum()) / len(copies))
