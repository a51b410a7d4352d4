"""Tables, notices and streams in memory that all processes see: nothing is late here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from manyhands.backends.processes import segment
from manyhands.types import Array, Table

BEGUN, COMPLETE = range(2)  # how often this copy was filled


class SharedTable:
    def __init__(self, array: Array) -> None:
        self._array = array

    def row(self, index: int) -> Array:
        row: Array = self._array[index]
        return row

    def rows(self) -> Array:
        return self._array


class SharedBudget:
    def __init__(self, table: Table, field: int, most: float) -> None:
        self._table, self._field, self._most = table, field, most

    def has_rest(self) -> bool:
        return bool(self._table.rows()[:, self._field].sum() < self._most)

    def must_wait(self) -> bool:
        return False


class DoubleBuffer:
    """A notice: two copies of its arrays and two counters. One process writes, many read.

    The writer fills the older copy and then counts the post as complete. A reader copies the
    newest, then checks whether the writer has begun to overwrite it, and reads again if so. There
    is no lock. A writer that is killed leaves the newest copy whole; its replacement refills
    the other one.
    """

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        self._copies = _shared_copy(arrays), _shared_copy(arrays)
        self._fills = segment.allocate((2,), np.dtype(np.int64))  # begun and complete
        self._numbers = segment.allocate((2,), np.dtype(np.int64))  # of the post in each copy

    def post(self, *arrays: Array) -> None:
        self.put(self.number() + 1, arrays)

    def put(self, number: int, arrays: Sequence[Array]) -> None:
        """The post with this number. Those between it and the last one were skipped."""
        fill = int(self._fills[COMPLETE]) + 1
        self._fills[BEGUN] = fill
        _copy(arrays, self._copies[fill % 2])
        self._numbers[fill % 2] = number
        self._fills[COMPLETE] = fill

    def number(self) -> int:
        return int(self._numbers[self._fills[COMPLETE] % 2])

    def read(self, *into: Array) -> int:
        while True:
            fill = int(self._fills[COMPLETE])
            _copy(self._copies[fill % 2], into)
            number = int(self._numbers[fill % 2])
            if int(self._fills[BEGUN]) <= fill + 1:
                return number


class SharedVector:
    """A live vector: readers copy the writer's memory."""

    def __init__(self, vector: Array) -> None:
        self.vector = _shared_copy((vector,))[0]

    def read(self, into: Array) -> None:
        np.copyto(into, self.vector)


class SharedStream:
    def __init__(
        self, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], writers: int, fields: int
    ) -> None:
        self.arrays = {name: segment.allocate(*kind) for name, kind in kinds.items()}
        self.heads, self.tails = (new_table(writers, fields, np.dtype(np.int64)) for _ in range(2))

    def overwritten(self) -> Array:
        return self.heads.rows()

    def has_room(self, writer: int) -> bool:  # noqa: ARG002
        return True


def new_table(rows: int, fields: int, dtype: np.dtype) -> SharedTable:
    return SharedTable(segment.allocate((rows, fields), dtype))


def _shared_copy(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    made = tuple(segment.allocate(array.shape, array.dtype) for array in arrays)
    _copy(arrays, made)
    return made


def _copy(arrays: Sequence[Array], into: Sequence[Array]) -> None:
    for array, target in zip(arrays, into, strict=True):
        np.copyto(target, array)
