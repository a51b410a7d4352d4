"""What is carried between nodes: entries and counts to main's node, tables and notices from it.

A node runner away from main's node reads counts first, then heads, then entries. So a batch has all
entries that its counts count. Main's node writes entries first, then heads, then counts. Batches
are numbered. One that came already is not written again; one that was lost is sent again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from manyhands.backends.processes import segment
from manyhands.backends.ray import pieces
from manyhands.backends.ray.places import (
    AGAIN,
    Budget,
    Live,
    Notice,
    Place,
    Records,
    Stream,
    Table,
)
from manyhands.types import Array, State

BATCH_BYTES = 4_000_000  # of entries
PUNCH_BYTES = 4_000_000  # of entries that have left before their memory is given back
PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
LIBC = ctypes.CDLL(None)
UNKNOWN = -1
Rows = tuple[Array, Array]  # which, and their numbers


class Entries(NamedTuple):
    """New entries of some lanes of a stream, and the heads that count them."""

    ranges: Array  # [k, 3] lane, first entry, and the one after the last
    heads: Rows


class Batch(NamedTuple):
    """It has entries of one stream at most."""

    streams: dict[int, Entries]  # by place
    tables: dict[int, Rows]
    records: dict[int, list[State]]
    content: tuple[bytes, ...] = ()  # of the entries: by array, all ranges one after the other

    @property
    def is_empty(self) -> bool:
        return not (self.streams or self.tables or self.records)


# --- Away from main's node ------------------------------------------------------------------------


class Outgoing:
    """What the processes of this node wrote since it was carried last."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places
        self._sent: dict[int, Array] = {}  # by stream: heads as they were carried last
        self._rows: dict[int, tuple[Array, Array]] = {}  # by table: its rows then, and its own ones

    def batches(self, *, with_unfinished: bool = False) -> Iterator[Batch]:
        """`with_unfinished`: also the entry that is being written, while no writer runs."""
        tables = dict(self._changed_rows())
        heads = {s.place: s.heads.array.copy() for s in self._streams()}
        yield from self._entries(heads, with_unfinished=with_unfinished)
        records = {p.place: p.drain() for p in self._places.values() if isinstance(p, Records)}
        last = Batch({}, tables, {place: some for place, some in records.items() if some})
        if not last.is_empty:
            yield last

    def _streams(self) -> list[Stream]:
        return [place for place in self._places.values() if isinstance(place, Stream)]

    def _changed_rows(self) -> Iterator[tuple[int, Rows]]:
        for table in (p for p in self._places.values() if isinstance(p, Table)):
            now, own = table.array.copy(), table.own.astype(bool)
            before, owned = self._rows.get(table.place, (now, np.zeros_like(own)))
            changed = own & ((now != before).any(1) | ~owned)  # a new writer is told, too
            self._rows[table.place] = now, own
            if changed.any():
                which = np.flatnonzero(changed)
                yield table.place, (which, now[which])

    def _entries(self, heads: dict[int, Array], *, with_unfinished: bool) -> Iterator[Batch]:
        for stream in self._streams():
            goal = heads[stream.place]
            done = self._done(stream)
            own = np.flatnonzero(stream.heads.own)
            most = max(1, BATCH_BYTES // max(1, _entry_bytes(stream) * stream.lanes * len(own)))
            while len(own) and ((goal[own] != done[own]).any() or with_unfinished):
                until = goal.copy()
                until[:, : stream.lanes] = np.minimum(
                    goal[:, : stream.lanes], done[:, : stream.lanes] + most
                )
                complete = bool((until[own] == goal[own]).all())
                extra = int(with_unfinished and complete)
                entries = _cut(stream, own, done, until, extra)
                content = pieces.cut(list(parts(stream, entries.ranges)))
                yield Batch({stream.place: entries}, {}, {}, tuple(content))
                done[own] = until[own]
                if complete:
                    break

    def _done(self, stream: Stream) -> Array:
        """Heads of what was put into batches. A writer that is new here begins with what left."""
        done = self._sent.setdefault(stream.place, np.full_like(stream.heads.array, UNKNOWN))
        fresh = (stream.heads.own == 1) & (done[:, 0] == UNKNOWN)
        done[fresh, : stream.lanes] = stream.left[fresh]
        return done


def _entry_bytes(stream: Stream) -> int:
    return sum(int(array[0, 0].nbytes) for array in stream.arrays.values())


def _cut(stream: Stream, own: Array, done: Array, until: Array, extra: int) -> Entries:
    ranges = []
    for writer in own.tolist():
        for lane in range(stream.lanes):
            start, stop = int(done[writer, lane]), int(until[writer, lane]) + extra
            ranges += _in_ring(writer * stream.lanes + lane, start, stop, stream.entries)
    return Entries(np.array(ranges, np.int64).reshape(-1, 3), (own, until[own]))


def parts(stream: Stream, ranges: Array) -> Iterator[Array]:
    """Where the entries lie."""
    listed = ranges.tolist()
    return (array[lane, a:b] for array in stream.arrays.values() for lane, a, b in listed)


def ranges_of(stream: Stream, writers: Iterable[int]) -> Iterator[Array]:
    """All entries of these writers, in ranges [1, 3] of about `BATCH_BYTES`."""
    most = max(1, BATCH_BYTES // max(1, _entry_bytes(stream)))
    for writer in writers:
        for at in range(stream.lanes):
            used = min(int(stream.heads.array[writer, at]), stream.entries)
            for start in range(0, used, most):
                lane, stop = writer * stream.lanes + at, min(used, start + most)
                yield np.array([[lane, start, stop]], np.int64)


def _in_ring(lane: int, start: int, stop: int, entries: int) -> list[tuple[int, int, int]]:
    """Places in the ring; two pieces where it begins again."""
    if start >= stop:
        return []
    first, last = start % entries, (stop - 1) % entries + 1
    if first < last:
        return [(lane, first, last)]
    return [(lane, first, entries), (lane, 0, last)]


class Punching:
    """Gives back the memory of entries that have left this node."""

    def __init__(self) -> None:
        self._punched: dict[int, Array] = {}  # by place: [writers, lanes]

    def punch(self, stream: Stream) -> None:
        if stream.kept:
            return
        before = self._punched.setdefault(stream.place, stream.left.copy())
        until = stream.left - AGAIN  # a writer may read its newest entry again
        waiting = int(np.maximum(until - before, 0).sum()) * _entry_bytes(stream)
        if waiting < PUNCH_BYTES:
            return
        for writer, lane in np.argwhere(until > before).tolist():
            start, stop = int(before[writer, lane]), int(until[writer, lane])
            for which, a, b in _in_ring(writer * stream.lanes + lane, start, stop, stream.entries):
                for array in stream.arrays.values():
                    _punch(array[which, a:b])
        np.maximum(before, until, out=before)


def _punch(array: Array) -> None:
    """Whole pages are given back, the rest is filled with zeros."""
    start = segment.address_of(array)
    whole = segment.segment_at(start)
    if whole is not None and array.flags.c_contiguous:
        offset = ctypes.c_long(start - whole.address)
        LIBC.fallocate(whole.descriptor, PUNCH_HOLE, offset, ctypes.c_long(array.nbytes))


def apply_tables(places: Mapping[int, Place], tables: Mapping[int, Array]) -> None:
    """Rows that other nodes wrote, and this node's leases."""
    for number, array in tables.items():
        place = places.get(number)
        if isinstance(place, Table | Budget):
            place.adopt([array])


def note_left(stream: Stream, entries: Entries) -> None:
    which, heads = entries.heads
    stream.left[which] = np.maximum(stream.left[which], heads[:, : stream.lanes])


# --- On main's node -------------------------------------------------------------------------------


class Incoming:
    """Writes batches of other nodes into main's memory."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places
        self._unread: dict[int, list[State]] = {}  # records for which there was no room yet

    def write(self, node: int, batch: Batch) -> None:
        for place, entries in batch.streams.items():
            self._write_entries(self._places[place], entries, batch.content)
        for budget in self._budgets():
            if budget.table.place in batch.tables:
                budget.note(node, batch.tables[budget.table.place][0])
        for place, (which, rows) in batch.tables.items():
            table = self._places[place]
            assert isinstance(table, Table)
            table.array[which] = rows
        for place, records in batch.records.items():
            self._unread.setdefault(place, []).extend(records)
        self.put_records()

    def _write_entries(self, stream: Any, entries: Entries, content: tuple[bytes, ...]) -> None:
        assert isinstance(stream, Stream)
        which, heads = entries.heads
        stream.reach[which] = heads[:, : stream.lanes] + 1  # first: what is overwritten from now on
        pieces.write(content, parts(stream, entries.ranges))
        stream.heads.array[which] = heads

    def put_records(self) -> None:
        """A record without room waits, up to as many as a writer may have in the channel."""
        for place, records in self._unread.items():
            channel = self._places[place]
            assert isinstance(channel, Records)
            while records and channel.put(records[0]):
                del records[0]
            del records[: max(0, len(records) - channel.capacity)]

    def _budgets(self) -> list[Budget]:
        return [place for place in self._places.values() if isinstance(place, Budget)]

    def leases(self, node: int, wanted: frozenset[int], *, nodes: int) -> dict[int, Array]:
        """By budget: how far this node may go. `nodes`: beside main's."""
        used = (budget for budget in self._budgets() if budget.place in wanted)
        return {budget.place: np.array([budget.lease(node, nodes)]) for budget in used}

    def tables(self, wanted: frozenset[int]) -> dict[int, Array]:
        found = ((number, self._places[number]) for number in wanted)
        return {number: p.array.copy() for number, p in found if isinstance(p, Table)}


class Notices:
    """The newest notices, read once for all nodes."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places

    def newer(self, known: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Place and number of those that are newer than what is known."""
        for place in list(self._places.values()):
            if isinstance(place, Notice | Live) and (number := place.number()) != known.get(
                place.place
            ):
                yield place.place, number
