"""Shared lanes: the lanes of all workers side by side, in memory that outlives their writers.

Every member writes to its own lanes, so writing needs no lock. Readers draw from all lanes or from
their own. A reader notes how far every lane is written, draws from the rows published by then,
copies them, and looks again. A row that a writer may have reached meanwhile is torn: it is counted
and drawn again. A process that replaces a dead member finds the rows of that member.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from manyhands.memory import layout
from manyhands.memory.storage import dealing
from manyhands.memory.storage.lanes import Lanes, Storage
from manyhands.memory.storage.priorities import SharedPriorities
from manyhands.types import Array, Backend, EnvSpec, State, Stream

MARGIN = 2  # rows that a writer may be writing: a step writes two where an episode ends


class SharedView(Lanes):
    """The lanes of some members as they were at the last `refresh`. Read-only."""

    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        columns: Mapping[str, str],
        storage: Storage,
        stream: Stream,
        members: slice,
    ) -> None:
        """`storage`: the rows of these members, and an array for how far they are written."""
        super().__init__(spec, rows, columns=columns, margin=MARGIN, storage=storage)
        self._stream, self._members = stream, members

    def refresh(self) -> None:
        self.written[:] = self._stream.heads.rows()[self._members].reshape(-1)

    def torn(self, ids: Array) -> Array:
        lane, place = np.divmod(ids, self.rows)
        newest = self.written[lane] - 1
        sequence = newest - (newest - place) % self.rows
        oldest_frame = sequence - (self.spec.stack - 1)
        now = self._stream.overwritten()[self._members].reshape(-1)
        return np.flatnonzero(oldest_frame < now[lane] + MARGIN - self.rows)


class SharedLanes:
    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        members: int,
        columns: Mapping[str, str],
        prioritized: Sequence[range] = (),
        kept: bool = False,
        backend: Backend,
    ) -> None:
        """`spec` describes the environments of one member. Each lane has `rows` rows.

        `kept`: members read their own lanes, and no others.

        `prioritized`: for each reader that draws by priority, the members that it reads.
        """
        self.spec, self.rows, self.columns = spec, rows, dict(columns)
        self.members, self.whole = members, replace(spec, lanes=members * spec.lanes)
        kinds = {
            name: ((self.whole.lanes, rows, *kind.shape), kind.base)
            for name, kind in layout(spec, columns).items()
        }
        self.stream = backend.stream(kinds, writers=members, fields=spec.lanes, kept=kept)
        self._priorities = [
            SharedPriorities(len(read) * spec.lanes, rows, backend.allocate) for read in prioritized
        ]
        self._first_lanes = [read.start * spec.lanes for read in prioritized]

    def to_write(self) -> SharedLanes:
        """The same lanes for members that only write: without the readers' priorities."""
        made = copy.copy(self)
        made._priorities, made._first_lanes = [], []
        return made

    def own(self, member: int, *, margin: int = 0) -> Lanes:
        """The lanes of one member, to write to. A replacement that also reads needs the margin:
        its predecessor may have been killed while it wrote.
        """
        storage = Storage(self.stream.heads.row(member), self._part(range(member, member + 1)))
        return Lanes(self.spec, self.rows, columns=self.columns, margin=margin, storage=storage)

    def view_all(self) -> SharedView:
        return self.view(range(self.members))

    def view(self, members: range) -> SharedView:
        """The lanes of these members, to read from."""
        spec = replace(self.spec, lanes=len(members) * self.spec.lanes)
        return SharedView(
            spec,
            self.rows,
            columns=self.columns,
            storage=Storage(np.zeros(spec.lanes, np.int64), self._part(members)),
            stream=self.stream,
            members=slice(members.start, members.stop),
        )

    def priorities(self, reader: int) -> SharedPriorities | None:
        """None if no reader draws by priority."""
        return self._priorities[reader] if self._priorities else None

    def _part(self, members: range) -> dict[str, Array]:
        theirs = slice(members.start * self.spec.lanes, members.stop * self.spec.lanes)
        return {name: array[theirs] for name, array in self.stream.arrays.items()}

    def written(self) -> Array:
        """Rows ever written to each lane."""
        return self.stream.heads.rows().reshape(-1).copy()

    def state(self) -> State:
        """Call it while nothing writes. Returns views: see `Lanes.state`."""
        readers = enumerate(zip(self._priorities, self._first_lanes, strict=True))
        return {
            **self._all().state(),
            "priorities": {str(n): {**one.state(), "first_lane": at} for n, (one, at) in readers},
        }

    def restore(self, state: State, n_step: int) -> int:
        """From the rows of any lanes; returns how many were kept. `n_step`: of the learners."""
        if self._is_alike(state):
            self._restore_alike(state)
            return int(np.minimum(self.written(), self.rows).sum())
        whole = self._all()
        dealt, kept = dealing.deal(state, whole)
        self._publish(whole.written)
        for priorities, first_lane in zip(self._priorities, self._first_lanes, strict=True):
            members = range(first_lane // self.spec.lanes, self.members)
            members = members[: priorities.lanes // self.spec.lanes]
            theirs = self.view(members)
            theirs.refresh()
            if state["priorities"]:
                dealing.deal_priorities(state, dealt, theirs, first_lane, priorities, n_step)
            else:
                priorities.restore({}, int(whole.written.max()))
        return kept

    def _is_alike(self, state: State) -> bool:
        readers = [one["first_lane"] for one in state["priorities"].values()]
        saved = state["rows"], np.shape(state["written"]), readers
        return saved == (self.rows, (self.whole.lanes,), list(self._first_lanes))

    def _restore_alike(self, state: State) -> None:
        whole = self._all()
        whole.restore(state)
        self._publish(whole.written)
        written = int(whole.written.max())
        for reader, priorities in enumerate(self._priorities):
            priorities.restore(state["priorities"][str(reader)], written)

    def _publish(self, written: Array) -> None:
        for member, heads in enumerate(written.reshape(self.members, -1)):
            self.stream.heads.row(member)[:] = heads

    def _all(self) -> Lanes:
        storage = Storage(self.written(), dict(self.stream.arrays))
        return Lanes(self.whole, self.rows, columns=self.columns, storage=storage)
