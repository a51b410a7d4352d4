"""The bank: everybody's lanes side by side, in memory that outlives who writes to it.

Every member writes to lanes of its own, so nothing on the way in needs a lock. Readers draw from
all of them or from their own. A reader takes note of how far every lane is written, draws from
what was published by then, copies, and looks again: a row whose place a writer may have come to
meanwhile is torn; it is counted and drawn again. Who follows a member that died finds its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from manyhands.memory.lanes import Allocate, Lanes, Storage, storage
from manyhands.memory.marks import Marks
from manyhands.types import Array, EnvSpec, State

MARGIN = 2  # rows a writer may be at: a step writes two where an episode ends


class Everyone(Lanes):
    """All lanes, or those of some, as they were when last looked at. Reads only."""

    def __init__(
        self, spec: EnvSpec, rows: int, *, columns: Mapping[str, str], kept: Storage
    ) -> None:
        noted = Storage(kept.written.copy(), kept.arrays)
        super().__init__(spec, rows, columns=columns, margin=MARGIN, kept=noted)
        self._published = kept.written

    def look(self) -> None:
        self.written[:] = self._published

    def torn(self, ids: Array) -> Array:
        lane, place = np.divmod(ids, self.rows)
        newest = self.written[lane] - 1
        sequence = newest - (newest - place) % self.rows
        oldest_frame = sequence - (self.spec.stack - 1)
        return np.flatnonzero(oldest_frame < self._published[lane] + MARGIN - self.rows)


class Bank:
    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        members: int,
        columns: Mapping[str, str],
        marked: Sequence[int] = (),
        allocate: Allocate = np.zeros,
    ) -> None:
        """`spec` is of one member's environments, `rows` of one lane; `marked`: of how many members
        each reader has the rows, of those that draw by priorities.
        """
        self.spec, self.rows, self.columns = spec, rows, dict(columns)
        self.whole = replace(spec, lanes=members * spec.lanes)
        self.storage = storage(self.whole, rows, columns, allocate)
        self._marks = [Marks(read * spec.lanes, rows, allocate) for read in marked]

    def own(self, member: int, *, margin: int = 0) -> Lanes:
        """The lanes of one member, to write to. Who follows another and reads needs the margin:
        that one may have been killed while it wrote.
        """
        kept = self._part(range(member, member + 1))
        return Lanes(self.spec, self.rows, columns=self.columns, margin=margin, kept=kept)

    def everyone(self) -> Everyone:
        return self.some(range(self.whole.lanes // self.spec.lanes))

    def some(self, members: range) -> Everyone:
        """The lanes of these members alone, to read from."""
        spec = replace(self.spec, lanes=len(members) * self.spec.lanes)
        return Everyone(spec, self.rows, columns=self.columns, kept=self._part(members))

    def marks(self, reader: int) -> Marks | None:
        """None where nobody has priorities."""
        return self._marks[reader] if self._marks else None

    def _part(self, members: range) -> Storage:
        theirs = slice(members.start * self.spec.lanes, members.stop * self.spec.lanes)
        arrays = {name: array[theirs] for name, array in self.storage.arrays.items()}
        return Storage(self.storage.written[theirs], arrays)

    def state(self) -> State:
        """While nobody writes. Views: see `Lanes.state`."""
        marks = {str(reader): marks.state() for reader, marks in enumerate(self._marks)}
        return {**self._all().state(), "marks": marks}

    def restore(self, state: State) -> None:
        self._all().restore(state)
        for reader, marks in enumerate(self._marks):
            marks.restore(state.get("marks", {}).get(str(reader), {}))

    def _all(self) -> Lanes:
        return Lanes(self.whole, self.rows, columns=self.columns, kept=self.storage)
