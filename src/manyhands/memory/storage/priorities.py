"""The priorities of a replay, in shared memory that remains if the process dies.

Only the process that draws writes them. If it is killed while it adds rows, some are in the tree
but not yet counted in `taken`. The process that replaces it adds them again.
"""

from __future__ import annotations

import numpy as np

from manyhands.memory.storage import sumtree
from manyhands.memory.storage.lanes import Allocate
from manyhands.types import Array, State, restored

FIRST_PRIORITY = 1.0  # of a new row while no row has been learned from


class SharedPriorities:
    MOST = sumtree.MOST  # the largest priority there is

    def __init__(self, lanes: int, rows: int, allocate: Allocate = np.zeros) -> None:
        numbers, counts = np.dtype(np.float64), np.dtype(np.int64)
        self.leaves = allocate((sumtree.leaves_of(lanes * rows),), numbers)
        self.taken = allocate((lanes,), counts)  # rows of each lane that were added to the tree
        self._largest = allocate((1,), numbers)
        self._shape = self.lanes, _ = lanes, rows

    @property
    def _column(self) -> Array:
        """The priorities in the shape of a lane column: [lanes, rows]."""
        lanes, rows = self._shape
        return self.leaves[: lanes * rows].reshape(lanes, rows)

    @property
    def largest(self) -> float:
        """The largest priority ever reported."""
        return max(FIRST_PRIORITY, float(self._largest[0]))

    @largest.setter
    def largest(self, priority: float) -> None:
        self._largest[0] = priority

    def forget(self, rows: Array) -> None:
        """Sets priority 0 where the mask of all rows is true."""
        self.leaves[: len(rows)][rows] = 0.0

    def state(self) -> State:
        """`priorities` is a view of the rows in use."""
        used = min(int(self.taken.max()), self._shape[1])
        return {
            "priorities": self._column[:, :used],
            "taken": self.taken.copy(),
            "largest": self.largest,
        }

    def fill(self, priorities: Array, taken: Array, largest: float) -> None:
        """Replaces everything. `priorities`: [lanes, rows]."""
        self._column[:], self.taken[:], self.largest = priorities, taken, largest

    def restore(self, state: State, written: int) -> None:
        """An empty state adds every row again, as if none had been learned from.

        `written`: rows written to the longest lane.
        """
        self._column[:], self.taken[:], self.largest = 0.0, 0, 0.0
        if state:
            taken = restored.between(state, "taken", self.taken, 0, written)
            used = self._column[:, : min(int(taken.max(initial=0)), self._shape[1])]
            used[:] = restored.between(state, "priorities", used, 0.0, sumtree.MOST)
            self.taken[:] = taken
            self.largest = restored.number(state, "largest", least=0)
