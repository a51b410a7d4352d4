"""Places: memory that every node has a copy of. Each has a number, and one writer for each part.

Main makes them. A process on main's node sees main's memory. On another node the node runner makes
memory of the same size, and its carrier keeps both alike (carrying.py). The objects are the same on
every node: only the memory below them differs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from manyhands.backends.processes import packing, segment
from manyhands.backends.processes.channel import Channel
from manyhands.backends.processes.outbox import Outbox
from manyhands.backends.processes.shared import DoubleBuffer
from manyhands.types import Array, BadRequest

INT = np.dtype(np.int64)
MOST_WAITING = 16_384  # entries of a lane that may wait to leave their node
AGAIN = 2  # newest entries of a lane that its next writer may need


class Table:
    def __init__(self, place: int, array: Array) -> None:
        self.place, self.array = place, array
        self.own = segment.allocate((len(array),), INT)  # 1: the row is written on this node

    def row(self, index: int) -> Array:
        self.own[index] = 1
        row: Array = self.array[index]
        return row

    def rows(self) -> Array:
        return self.array

    def arrays(self) -> list[Array]:
        return [self.array, self.own]

    def given(self) -> list[Array]:
        """What a new node needs to know."""
        return [self.array.copy()]

    def adopt(self, given: list[Array]) -> None:
        """Rows that are written on other nodes."""
        others = self.own == 0
        self.array[others] = given[0][others]


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
        self.put(int(given[0]), given[1:])


class Stream:
    """Entries lie where they are read. On other nodes a writer's entries wait to be carried."""

    def __init__(
        self, place: int, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], heads: Table,
        tails: Table,
    ) -> None:  # fmt: skip
        """`heads` is carried with the entries; `tails` is a place of its own."""
        self.place, self.heads, self.tails = place, heads, tails
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


Place = Table | Notice | Stream | Records


# --- For other nodes ------------------------------------------------------------------------------


class Known:
    """Which memory other nodes have copies of."""

    def __init__(self, control_table: Array) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._segments: set[int] = set()  # their addresses
        self.add([control_table])

    def add(self, arrays: list[Array]) -> None:
        for array in arrays:
            start = segment.address_of(array)
            self._ranges.append((start, start + array.nbytes))
            found = segment.segment_at(start)
            assert found is not None
            self._segments.add(found.address)

    def add_segment(self, whole: segment.Segment) -> None:
        self._segments.add(whole.address)

    def has(self, address: int) -> bool:
        return any(start <= address < stop for start, stop in self._ranges)

    def has_segment(self, whole: segment.Segment) -> bool:
        return whole.address in self._segments


class AwayPacker(packing.Packer):
    """Packs for another node. Refuses memory that the node has no copy of."""

    def __init__(self, file: io.BytesIO, client: int, known: Known) -> None:
        super().__init__(file, client)
        self._known = known
        self.used: dict[int, Place] = {}  # by number

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Place) and thing.place >= 0:
            self.used[thing.place] = thing
        if isinstance(thing, Records):
            return thing.end_of(self._client)
        if not self._is_there(thing):
            raise _elsewhere(thing)
        return super().reducer_override(thing)

    def _is_there(self, thing: Any) -> bool:
        if isinstance(thing, segment.Segment):
            return self._known.has_segment(thing)
        if isinstance(thing, packing.Endpoint):
            return False
        if isinstance(thing, packing.Inherited):
            return isinstance(thing, Outbox)
        reduced = packing.reduce_shared(thing)
        if reduced is None:
            return True
        whole, offset = reduced[1][:2]
        return self._known.has(whole.address + offset)


def _elsewhere(thing: Any) -> BadRequest:
    return BadRequest(
        f"a {type(thing).__name__} in memory of one node was given to a process of another",
        "give such a process tables, notices, streams and channels only",
    )


def pack_for_another_node(
    thing: Any, *, client: int, name: str, known: Known
) -> tuple[packing.Parcel, dict[int, Place]]:
    """The parcel, and the places that it uses."""
    file = io.BytesIO()
    packer = AwayPacker(file, client, known)
    parcel = packing.pack_with(packer, file, thing, name)
    return parcel, packer.used


def arrays_of(place: Place) -> Iterator[Array]:
    if isinstance(place, Stream):
        yield from place.memory()
    elif not isinstance(place, Records):
        yield from place.arrays()
