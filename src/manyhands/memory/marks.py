"""Marks: what a prioritized replay knows of its rows, where who follows a dead learner finds it.

One reader writes them. Killed in the middle of it, it leaves rows that the tree has heard of and
`taken` does not count yet; who follows takes them in once more.
"""

from __future__ import annotations

import numpy as np

from manyhands.memory import sumtree
from manyhands.memory.lanes import Allocate
from manyhands.types import Array, State

FIRST_MARK = 1.0  # of a row, where nobody has learned from any


class Marks:
    def __init__(self, lanes: int, rows: int, allocate: Allocate = np.zeros) -> None:
        """Of so many lanes of so many rows each."""
        numbers, counts = np.dtype(np.float64), np.dtype(np.int64)
        self.leaves = allocate((sumtree.leaves_of(lanes * rows),), numbers)
        self.taken = allocate((lanes,), counts)  # rows of each lane the tree has heard of
        self._largest = allocate((1,), numbers)
        self._shape = lanes, rows

    @property
    def _column(self) -> Array:
        """Like those of the lanes."""
        lanes, rows = self._shape
        return self.leaves[: lanes * rows].reshape(lanes, rows)

    @property
    def largest(self) -> float:
        """Of all priorities ever."""
        return max(FIRST_MARK, float(self._largest[0]))

    @largest.setter
    def largest(self, priority: float) -> None:
        self._largest[0] = priority

    def state(self) -> State:
        """`priorities` is a view, of what is used."""
        used = min(int(self.taken.max()), self._shape[1])
        return {
            "priorities": self._column[:, :used],
            "taken": self.taken.copy(),
            "largest": self.largest,
        }

    def restore(self, state: State) -> None:
        """Without a state every row is taken in anew, as if nobody had learned from it."""
        self._column[:] = 0.0
        if state:
            self._column[:, : state["priorities"].shape[1]] = state["priorities"]
        self.taken[:] = state.get("taken", 0)
        self.largest = float(state.get("largest", 0.0))
