"""A shard: the process that holds one slice, and how the vector is cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Ledger
from manyhands.types import BadRequest, Table

LINE = 64  # numbers
FIRST = 0  # the shard that records for all


class Shard:
    """One slice of the vector, in its own process. What must survive a kill is shared memory."""

    def __init__(
        self,
        index: int,
        vector: Tensor,
        optimizers: list[optim.PartOptimizer | None],
        versions: Table,
        ledger: Ledger,
        max_staleness: int,
    ) -> None:
        self._index, self._vector, self._version = index, vector, versions.row(index)
        self._optimizers = optimizers
        self._ledger, self._max_staleness = ledger, max_staleness

    def push(self, gradient: Tensor, part: float, version: float, lr: float) -> None:
        optimizer = self._optimizers[int(part)]
        if optimizer is not None and not self._is_too_old(version):
            optimizer.step(gradient, lr)
        self.count(version)

    def count(self, version: float) -> None:
        """Counts one gradient, even if this shard holds nothing of its part."""
        if self._is_too_old(version):
            self._record(self._ledger.dropped)
            return
        self._record(partial(self._ledger.applied, staleness=self._staleness(version)))
        self._version[0] += 1

    def _is_too_old(self, version: float) -> bool:
        return 0 < self._max_staleness < self._staleness(version)

    def _staleness(self, version: float) -> int:
        return self.version() - int(version)

    def _record(self, record: Callable[[int], None]) -> None:
        """Only the first shard records, so that each gradient is recorded once."""
        if self._index == FIRST:
            record(FIRST)

    def fetch(self) -> tuple[Tensor, int]:
        return self._vector, self.version()

    def version(self) -> int:
        return int(self._version[0])


def cut(numbers: int, shards: int, parts: Mapping[str, slice]) -> list[slice]:
    """Cuts the vector into slices of about equal length.

    A cut is a multiple of 64 numbers after the start of a part. Vector instructions take 16
    numbers at once and the rest one by one, with other rounding. So k shards compute the same
    bits as one.
    """
    edges = [0]
    for edge in np.linspace(0, numbers, shards + 1).astype(int)[1:-1].tolist():
        start = max(part.start for part in parts.values() if part.start <= edge)
        edges.append(max(edges[-1], start + (edge - start) // LINE * LINE))
    return [slice(a, b) for a, b in pairwise([*edges, numbers])]


def shard_slices(numbers: int, shards: int, parts: Mapping[str, slice]) -> list[slice]:
    """The slice of each shard; refuses more shards than can have one."""
    ways = {most: cut(numbers, most, parts) for most in range(shards, 0, -1)}
    most = next(m for m, slices in ways.items() if all(s.start < s.stop for s in slices))
    if most < shards:
        raise BadRequest(
            f"{numbers:,} parameters are too few for {shards} shards",
            f"use --parameter-server.shards {most}",
        )
    return ways[shards]
