"""What is packed for another node: places only, since it has no other memory of main's node."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from manyhands.backends.processes import group, hosted, packing, segment
from manyhands.backends.processes.outbox import Outbox
from manyhands.backends.ray.boxes import Box, Rounds
from manyhands.backends.ray.places import Own, Place, Records, Stream
from manyhands.backends.ray.rounds import AwayGroup
from manyhands.types import Array, BadRequest


class Known:
    """Which memory other nodes have copies of."""

    def __init__(self, control_table: Array) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._segments: set[int] = set()  # their addresses
        self._boxes: dict[int, Box] = {}  # by the address of a mailbox
        self._rounds: dict[int, Rounds] = {}  # by the address of a group
        self._own: list[tuple[int, int, Own]] = []  # with their ranges
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

    def add_place(self, place: Place) -> None:
        self.add(list(arrays_of(place)))
        if isinstance(place, Records):
            self.add_segment(place.memory)
        elif isinstance(place, Box):
            self.add_segment(place.mailbox.memory)
            self._boxes[place.mailbox.memory.address] = place
        elif isinstance(place, Rounds):
            assert place.group is not None
            self.add_segment(place.mailbox.memory)
            self._rounds[place.group.address] = place
        elif isinstance(place, Own):
            start = segment.address_of(place.array)
            self._own.append((start, start + place.array.nbytes, place))

    def box_of(self, handle: hosted.Handle) -> Box | None:
        """None: it is of a hosted object that other nodes do not know."""
        return self._boxes.get(handle.mailbox.memory.address)

    def rounds_of(self, thing: group.Group) -> Rounds | None:
        """None: its members are on main's node."""
        return self._rounds.get(thing.address)

    def own_at(self, address: int) -> Own | None:
        return next((own for start, stop, own in self._own if start <= address < stop), None)

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
        if isinstance(thing, hosted.Handle) and (box := self._known.box_of(thing)):
            self.used[box.place] = box
            return thing.end_of(self._client)
        if isinstance(thing, Rounds):
            return thing.elsewhere()
        if isinstance(thing, group.Group) and (rounds := self._known.rounds_of(thing)):
            self.used[rounds.place] = rounds
            return AwayGroup, (rounds.mailbox, self._client, rounds.rows, rounds.stamps)
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
        if (own := self._known.own_at(whole.address + offset)) is not None:
            self.used[own.place] = own
        return self._known.has(whole.address + offset)


def _elsewhere(thing: Any) -> BadRequest:
    return BadRequest(
        f"a {type(thing).__name__} in memory of one node was given to a process of another",
        "give such a process tables, notices, live vectors, streams, channels and handles only",
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
