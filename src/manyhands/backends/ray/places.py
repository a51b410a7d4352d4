"""Places: memory that every node has a copy of. Each has a number, and one writer for each part.

Main makes them. A process on main's node sees main's memory. On another node the node runner makes
memory of the same size, and its carrier keeps both alike (carrying.py). The objects are the same on
every node: only the memory below them differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from manyhands.backends.processes import segment
from manyhands.backends.processes.channel import Channel
from manyhands.backends.processes.shared import DoubleBuffer
from manyhands.backends.ray.boxes import MOST_RUNNERS as MOST_RUNNERS
from manyhands.backends.ray.boxes import Box, Rounds
from manyhands.types import Array

INT, COUNT = np.dtype(np.int64), np.dtype(np.float64)
HERE = 0  # where another node has its own lease
MOST_WAITING = 16_384  # entries of a lane that may wait to leave their node
AGAIN = 2  # newest entries of a lane that its next writer may need


class Table:
    def __init__(self, place: int, array: Array) -> None:
        self.place, self.array = place, array
        self.own = segment.allocate((len(array),), INT)  # 1: the row is written on this node
        self.led = segment.allocate((len(array),), INT)  # 1: it comes with the vector it counts for

    def row(self, index: int) -> Array:
        self.own[index] = 1
        row: Array = self.array[index]
        return row

    def rows(self) -> Array:
        return self.array

    def arrays(self) -> list[Array]:
        return [self.array, self.own, self.led]

    def given(self) -> list[Array]:
        """What a new node needs to know."""
        return [self.array.copy()]

    def adopt(self, given: list[Array]) -> None:
        """Rows that are written on other nodes."""
        others = (self.own == 0) & (self.led == 0)
        self.array[others] = given[0][others]


class Budget:
    """How far a field of a table may grow over all nodes, though its rows come late.

    Main's node leases a part of what is left to each other node, and counts the whole lease as
    used. So the sum stays below the limit. A lease is a share of what is left: the last ones are
    small, so that no run waits long for a slow node. That of a lost node is free again.
    """

    def __init__(self, place: int, table: Table, field: int, most: float) -> None:
        self.place, self.table, self._field, self._most = place, table, field, most
        self._leases = segment.allocate((MOST_RUNNERS,), COUNT)  # by node: what its rows may count
        self._node = segment.allocate((len(table.array),), INT)  # by row: the node that writes it
        self._unused = segment.allocate((1,), COUNT)  # of all leases
        self._away = segment.allocate((1,), INT)  # 1: on another node

    def has_rest(self) -> bool:
        counts = self.table.array[:, self._field]
        if self._away[0]:
            return bool(counts[self.table.own == 1].sum() < self._leases[HERE])
        return bool(counts.sum() + self._unused[0] < self._most)

    def must_wait(self) -> bool:
        return not self.has_rest()

    # --- On main's node ---------------------------------------------------------------------------

    def note(self, node: int, rows: Array) -> None:
        """This node writes these rows now."""
        self._node[rows] = node

    def lease(self, node: int, nodes: int) -> float:
        """What the rows of this node may count in sum. `nodes`: how many there are beside main's.

        A node keeps half of an equal share, so that a quick one finds more when it asks again.
        """
        if self._most == math.inf:
            return math.inf
        left, unused, counts = self._settle()
        share = math.ceil(max(0.0, left) / (2 * (nodes + 1)))
        if unused[node] < share and (self._node == node).any():
            self._unused[0] += share - max(0.0, unused[node])  # first: it counts as used
            self._leases[node] = counts[node] + share
        return float(self._leases[node])

    def end_lease(self, node: int) -> None:
        """Nothing that this node does counts from now on."""
        self._leases[node] = 0
        self._settle()

    def _settle(self) -> tuple[float, Array, Array]:
        """What is left; by node, what it has not used of its lease, and what its rows count."""
        counts = self.table.array[:, self._field].copy()
        by_node = np.bincount(self._node, weights=counts, minlength=MOST_RUNNERS)
        unused = np.where(self._leases > 0, self._leases - by_node, 0.0)
        self._unused[0] = np.maximum(unused, 0.0).sum()
        return self._most - counts.sum() - self._unused[0], unused, by_node

    # --- Carrying ---------------------------------------------------------------------------------

    def arrays(self) -> list[Array]:
        return [self._leases, self._node, self._unused, self._away]

    def given(self) -> list[Array]:
        return [np.zeros(1)]

    def adopt(self, given: list[Array]) -> None:
        """On another node: its lease. Answers may overtake each other, and a lease never shrinks"""
        self._away[0] = 1
        self._leases[HERE] = max(self._leases[HERE], given[0][0])


class Notice(DoubleBuffer):
    def __init__(self, place: int, arrays: tuple[Array, ...]) -> None:
        super().__init__(arrays)
        self.place = place

    def arrays(self) -> list[Array]:
        return [*self._copies[0], *self._copies[1], self._fills, self._numbers]

    def given(self) -> list[Array]:
        into = [np.empty_like(array) for array in self._copies[0]]
        number = self.read(*into)
        return [np.array(number), *into]

    def adopt(self, given: list[Array]) -> None:
        """Requests may come twice, and late: what is older stays away."""
        if given[0] >= self.number():
            self.put(int(given[0]), given[1:])


class Live:
    """A vector that is written on main's node. Each change arrives once on every other node."""

    def __init__(self, place: int, vector: Array, counts: Table, row: int) -> None:
        self.place, self._counts, self._row = place, counts, row
        self.vector = segment.allocate(vector.shape, vector.dtype)
        np.copyto(self.vector, vector)

    def read(self, into: Array) -> None:
        np.copyto(into, self.vector)

    def number(self) -> int:
        return int(self._counts.array[self._row, 0])

    def arrays(self) -> list[Array]:
        return [self.vector]

    def given(self) -> list[Array]:
        number = self.number()  # first: it is never ahead of the vector
        return [np.array(number), self.vector.copy()]

    def adopt(self, given: list[Array]) -> None:
        """Requests may come twice, and late: what is older stays away."""
        newest = max(0, self.number()) if self._counts.led[self._row] else 0
        self._counts.led[self._row] = 1
        if given[0] >= newest:
            np.copyto(self.vector, given[1])
            self._counts.array[self._row, 0] = given[0]


class Own:
    """Memory that each node has of its own."""

    def __init__(self, place: int, array: Array, fill: int) -> None:
        """`fill`: what it is filled with on other nodes than main's."""
        self.place, self.array, self._fill = place, array, fill

    def arrays(self) -> list[Array]:
        return [self.array]

    def given(self) -> list[Array]:
        return []

    def adopt(self, given: list[Array]) -> None:  # noqa: ARG002
        """When the node runner begins. It is zeros then."""
        if self._fill:
            self.array[...] = self._fill
        self._fill = 0  # it may be told twice


class Stream:
    """Entries lie where they are read. On other nodes a writer's entries wait to be carried."""

    def __init__(
        self, place: int, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], heads: Table,
        tails: Table, *, kept: bool = False,
    ) -> None:  # fmt: skip
        """`heads` is carried with the entries; `tails` is a place of its own. `kept`: a writer
        reads its entries too, so they stay on its node as well.
        """
        self.place, self.heads, self.tails, self.kept = place, heads, tails, kept
        self.arrays = {name: segment.allocate(*kind) for name, kind in kinds.items()}
        writers = len(heads.array)
        lanes, self.entries = next(iter(kinds.values()))[0][:2]
        self.lanes = lanes // writers  # of each writer
        self.reach = segment.allocate((writers, self.lanes), INT)  # heads of what is being written
        self.left = segment.allocate((writers, self.lanes), INT)  # entries that have left this node
        self.away = segment.allocate((1,), INT)  # 1: the readers are on another node

    @property
    def window(self) -> int:
        return max(1, min(self.entries // 2, MOST_WAITING))

    def overwritten(self) -> Array:
        heads = self.heads.array
        if not self.reach.any():
            return heads
        now = heads.copy()
        np.maximum(now[:, : self.lanes], self.reach, out=now[:, : self.lanes])
        return now

    def has_room(self, writer: int) -> bool:
        if not self.away[0]:
            return True
        waiting = self.heads.array[writer, : self.lanes] - self.left[writer]
        return bool(waiting.max() < self.window)

    def memory(self) -> list[Array]:
        return [*self.arrays.values(), *self.heads.arrays(), self.reach, self.left, self.away]

    def given(self) -> list[Array]:
        heads = self.heads.array
        lane, entry = self._newest(heads)
        return [heads.copy(), *(array[lane, entry] for array in self.arrays.values())]

    def adopt(self, given: list[Array]) -> None:
        """The heads, and the newest entries of every lane, which its next writer may need."""
        heads, others = given[0], self.heads.own == 0
        lane, entry = self._newest(heads)
        kept = np.repeat(others, AGAIN * self.lanes)
        for array, newest in zip(self.arrays.values(), given[1:], strict=True):
            array[lane[kept], entry[kept]] = newest[kept]
        self.left[others], self.away[0] = heads[others, : self.lanes], 1
        self.heads.array[others] = heads[others]

    def _newest(self, heads: Array) -> tuple[Array, Array]:
        """The last entries of each lane, and the one that is being written."""
        counts = heads[:, : self.lanes].reshape(-1)
        lane = np.repeat(np.arange(len(counts)), AGAIN)
        entry = (counts[:, None] - np.arange(AGAIN - 1, -1, -1)).reshape(-1) % self.entries
        return lane, entry


class Records(Channel):
    """A channel. Its records are carried to main's node."""

    def __init__(self, memory: segment.Segment, capacity: int, client: int, place: int) -> None:
        super().__init__(memory, capacity, client)
        self.place, self.memory, self.capacity = place, memory, capacity

    def given(self) -> list[Array]:
        return []

    def adopt(self, given: list[Array]) -> None:
        """A new node has no records."""

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        super().reduce_for(client)
        return self.end_of(client)

    def end_of(self, client: int) -> tuple[Any, ...]:
        """Without memory for this client: it may be a client on another node."""
        return Records, (self.memory, self.capacity, client, self.place)


Place = Table | Budget | Notice | Live | Box | Rounds | Own | Stream | Records
