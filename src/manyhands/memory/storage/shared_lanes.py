"""Shared lanes: the lanes of all workers side by side, in memory that outlives their writers.

Every member writes to its own lanes, so writing needs no lock. Readers draw from all lanes or from
their own. A reader notes how far every lane is written, draws from the rows published by then,
copies them, and looks again. A row that a writer may have reached meanwhile is torn: it is counted
and drawn again. A process that replaces a dead member finds the rows of that member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from manyhands.memory.storage.lanes import Allocate, Lanes, Storage, allocate_storage
from manyhands.memory.storage.priorities import SharedPriorities
from manyhands.types import Array, EnvSpec, State

MARGIN = 2  # rows that a writer may be writing: a step writes two where an episode ends


class SharedView(Lanes):
    """The lanes of some members as they were at the last `refresh`. Read-only."""

    def __init__(
        self, spec: EnvSpec, rows: int, *, columns: Mapping[str, str], storage: Storage
    ) -> None:
        noted = Storage(storage.written.copy(), storage.arrays)
        super().__init__(spec, rows, columns=columns, margin=MARGIN, storage=noted)
        self._published = storage.written

    def refresh(self) -> None:
        self.written[:] = self._published

    def torn(self, ids: Array) -> Array:
        lane, place = np.divmod(ids, self.rows)
        newest = self.written[lane] - 1
        sequence = newest - (newest - place) % self.rows
        oldest_frame = sequence - (self.spec.stack - 1)
        return np.flatnonzero(oldest_frame < self._published[lane] + MARGIN - self.rows)


class SharedLanes:
    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        members: int,
        columns: Mapping[str, str],
        prioritized: Sequence[int] = (),
        allocate: Allocate = np.zeros,
    ) -> None:
        """`spec` describes the environments of one member. Each lane has `rows` rows.

        `prioritized`: for each reader that draws by priority, how many members it reads.
        """
        self.spec, self.rows, self.columns = spec, rows, dict(columns)
        self.whole = replace(spec, lanes=members * spec.lanes)
        self.storage = allocate_storage(self.whole, rows, columns, allocate)
        self._priorities = [
            SharedPriorities(read * spec.lanes, rows, allocate) for read in prioritized
        ]

    def own(self, member: int, *, margin: int = 0) -> Lanes:
        """The lanes of one member, to write to. A replacement that also reads needs the margin:
        its predecessor may have been killed while it wrote.
        """
        storage = self._part(range(member, member + 1))
        return Lanes(self.spec, self.rows, columns=self.columns, margin=margin, storage=storage)

    def view_all(self) -> SharedView:
        return self.view(range(self.whole.lanes // self.spec.lanes))

    def view(self, members: range) -> SharedView:
        """The lanes of these members, to read from."""
        spec = replace(self.spec, lanes=len(members) * self.spec.lanes)
        return SharedView(spec, self.rows, columns=self.columns, storage=self._part(members))

    def priorities(self, reader: int) -> SharedPriorities | None:
        """None if no reader draws by priority."""
        return self._priorities[reader] if self._priorities else None

    def _part(self, members: range) -> Storage:
        theirs = slice(members.start * self.spec.lanes, members.stop * self.spec.lanes)
        arrays = {name: array[theirs] for name, array in self.storage.arrays.items()}
        return Storage(self.storage.written[theirs], arrays)

    def state(self) -> State:
        """Call it while nothing writes. Returns views: see `Lanes.state`."""
        priorities = {str(reader): one.state() for reader, one in enumerate(self._priorities)}
        return {**self._all().state(), "marks": priorities}

    def restore(self, state: State) -> None:
        self._all().restore(state)
        saved, written = state.get("marks", {}), int(self.storage.written.max())
        for reader, priorities in enumerate(self._priorities):
            priorities.restore(saved.get(str(reader), {}), written)

    def _all(self) -> Lanes:
        return Lanes(self.whole, self.rows, columns=self.columns, storage=self.storage)
