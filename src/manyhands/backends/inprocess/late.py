"""Tables, notices and streams as on a cluster: each worker sees what others write some time later.

Every client has its own copies. They are brought up to date together, at a read that a seeded
generator draws, so a count is never ahead of what it counts. A client's own rows are current. Code
that relies on memory which all see at once therefore fails here, and can be repeated. How often
main reads depends on time, so turns decide when its copies are brought up to date. With one worker
nothing is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from manyhands.backends.inprocess.turns import MAIN, Turns
from manyhands.types import Array

CHANCE = 0.5  # that a read brings the copies up to date
MOST_READS = 4  # without being brought up to date
MAIN_TURNS = 2  # after which main's copies are brought up to date


class Copies:
    """What one client knows of all arrays that others write."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.reads = 0  # since it was brought up to date
        self.turn = 0  # in which it was brought up to date


class Mirrors:
    """All arrays with late readers, and each client's copies of them."""

    def __init__(self, turns: Turns, seed: int) -> None:
        self._turns, self._rng = turns, np.random.default_rng((seed, 1))
        self._truth: list[Array] = []
        self._of: dict[int, Copies] = {}  # by client

    @property
    def are_late(self) -> bool:
        return self._turns.crowded

    def add(self, array: Array) -> int:
        self._truth.append(array)
        return len(self._truth) - 1

    def seen(self, number: int) -> Array:
        """The array as the client whose turn it is knows it."""
        if not self._turns.crowded:
            return self._truth[number]
        copies = self._of.setdefault(self._turns.current, Copies())
        if len(copies.arrays) != len(self._truth) or self._is_due(copies):
            self.update(copies)
        return copies.arrays[number]

    def _is_due(self, copies: Copies) -> bool:
        if self._turns.current == MAIN:
            return self._turns.count >= copies.turn + MAIN_TURNS
        copies.reads += 1
        return copies.reads > MOST_READS or self._rng.random() < CHANCE

    def known(self, number: int) -> Array:
        """The same without being brought up to date first: it belongs to what was just seen."""
        if not self._turns.crowded:
            return self._truth[number]
        return self._of[self._turns.current].arrays[number]

    def look(self) -> None:
        """Brings the copies of the client whose turn it is up to date."""
        if self._turns.crowded:
            self.update(self._of.setdefault(self._turns.current, Copies()))

    def update(self, copies: Copies) -> None:
        copies.reads, copies.turn = 0, self._turns.count
        for number, array in enumerate(self._truth):
            if number == len(copies.arrays):
                copies.arrays.append(array.copy())
            else:
                np.copyto(copies.arrays[number], array)


class LateTable:
    def __init__(self, mirrors: Mirrors, current: Callable[[], int], array: Array) -> None:
        self._array, self._mirrors, self._current = array, mirrors, current
        self._number = mirrors.add(array)
        self._own: dict[int, set[int]] = {}  # by client: the rows it writes

    def row(self, index: int) -> Array:
        self._own.setdefault(self._current(), set()).add(index)
        row: Array = self._array[index]
        return row

    def rows(self) -> Array:
        if not self._mirrors.are_late:
            return self._array
        seen = self._mirrors.seen(self._number)
        if seen is not self._array:
            for index in self._own.get(self._current(), ()):
                seen[index] = self._array[index]
        return seen

    def now(self) -> Array:
        return self._array


class PromptBudget:
    """It counts what all have written by now."""

    def __init__(self, table: LateTable, field: int, most: float) -> None:
        self._table, self._field, self._most = table, field, most

    def has_rest(self) -> bool:
        return bool(self._table.now()[:, self._field].sum() < self._most)

    def must_wait(self) -> bool:
        return False


class LateNotice:
    def __init__(self, mirrors: Mirrors, arrays: tuple[Array, ...]) -> None:
        self._arrays = [array.copy() for array in arrays]
        self._posts = np.zeros(1, np.int64)
        self._mirrors = mirrors
        self._numbers = [mirrors.add(array) for array in (self._posts, *self._arrays)]

    def post(self, *arrays: Array) -> None:
        for array, value in zip(self._arrays, arrays, strict=True):
            np.copyto(array, value)
        self._posts[0] += 1

    def number(self) -> int:
        return int(self._mirrors.seen(self._numbers[0])[0])

    def read(self, *into: Array) -> int:
        number = self.number()
        for target, place in zip(into, self._numbers[1:], strict=True):
            np.copyto(target, self._mirrors.known(place))
        return number


class LateVector:
    def __init__(self, mirrors: Mirrors, vector: Array) -> None:
        self.vector, self._mirrors = vector.copy(), mirrors
        self._number = mirrors.add(self.vector)

    def read(self, into: Array) -> None:
        np.copyto(into, self._mirrors.seen(self._number))


class LateStream:
    """Rows lie where their reader is; only the heads and tails are late."""

    def __init__(
        self,
        kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        heads: LateTable,
        tails: LateTable,
    ) -> None:
        self.arrays = {name: np.zeros(*kind) for name, kind in kinds.items()}
        self.heads, self.tails = heads, tails

    def overwritten(self) -> Array:
        return self.heads.now()

    def has_room(self, writer: int) -> bool:  # noqa: ARG002
        return True
