"""A double buffer: two copies of a value and two counters. One process writes, many read.

The writer fills the older copy and then counts the write as complete. A reader copies the newest,
then checks whether the writer has begun to overwrite it, and reads again if so. Nobody waits for a
lock. A writer that is killed leaves the newest copy whole; its replacement refills the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from manyhands.types import Backend

BEGUN, COMPLETE = range(2)
Copy = TypeVar("Copy")
Value = TypeVar("Value")


class DoubleBuffer(Generic[Copy]):
    def __init__(self, backend: Backend, copies: tuple[Copy, Copy]) -> None:
        """`copies`: in shared memory, both with the first value."""
        self._copies = copies
        self._writes = backend.allocate((2,), np.dtype(np.int64))  # begun and complete

    @property
    def writes(self) -> int:
        """How many writes are complete."""
        return int(self._writes[COMPLETE])

    def write(self, fill: Callable[[Copy], object]) -> None:
        """For one writer."""
        number = self.writes + 1
        self._writes[BEGUN] = number
        fill(self._copies[number % 2])
        self._writes[COMPLETE] = number

    def read(self, take: Callable[[Copy], Value]) -> tuple[Value, int]:
        """What `take` copies of the newest, and the number of its write."""
        while True:
            number = self.writes
            value = take(self._copies[number % 2])
            if int(self._writes[BEGUN]) <= number + 1:
                return value, number
