"""Outcomes: the newest row of every pair of a discrete observation (a state) and an action.

This is the model of tabular planning: it predicts that what followed last time follows again. It
is an index over lanes, so a process that takes over builds it again from the rows. A pair is
forgotten when its newest row is overwritten.
"""

from __future__ import annotations

import numpy as np

from manyhands.memory.storage.lanes import CLOSING, NONE, Lanes
from manyhands.memory.storage.sampling import Sample
from manyhands.types import Array, State, restored

UNKNOWN = -1


class Outcomes:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.actions = lanes, lanes.spec.actions
        pairs = lanes.spec.states * self.actions
        self.newest = np.full(pairs, UNKNOWN)  # the row of each pair
        self.taken = np.zeros(lanes.spec.lanes, np.int64)  # rows of each lane that were taken in
        self._oldest = np.zeros(lanes.spec.lanes, np.int64)  # rows before were forgotten
        self.previewed = False  # whether the row after the newest one is there already
        self._pair_of = np.full(lanes.capacity, UNKNOWN)
        self._strides = np.array(lanes.spec.strides)
        self._known: Array | None = NONE
        self._resumed = False

    def known(self) -> Array:
        """All pairs that have an outcome, in order."""
        if self._known is None:
            self._known = np.flatnonzero(self.newest >= 0)
        return self._known

    def holds(self, rows: Array) -> Array:
        """[b] bool: which rows were not overwritten."""
        lane, place = np.divmod(rows, self.lanes.rows)
        newest = self.lanes.written[lane] - 1
        held: Array = newest - (newest - place) % self.lanes.rows >= self._oldest[lane]
        return held

    def states(self, rows: Array) -> Array:
        """The index of the observation of each row."""
        frame = self.lanes.flat["frame"].take(rows, axis=0)
        index: Array = frame[:, 0] if frame.shape[1] == 1 else frame @ self._strides
        return index

    def pairs(self, rows: Array) -> Array:
        """The number of the state and action of each row."""
        index: Array = self.states(rows) * self.actions + self.lanes.flat["action"].take(rows)
        return index

    def next_states(self, rows: Array) -> Array:
        """UNKNOWN where nothing follows."""
        ends = self.lanes.flat["discount"].take(rows) == 0
        return np.where(ends, UNKNOWN, self.states(self.lanes.onward(rows)))

    def sample(self, rows: Array, gamma: float) -> Sample:
        flat = self.lanes.flat
        discount = flat["discount"].take(rows) * np.float32(gamma)
        weight = np.ones(len(rows), np.float32)
        return Sample(rows, flat["reward"].take(rows), discount, self.lanes.onward(rows), weight)

    def take_in(self) -> Array:
        """Adds what was written since the last call. Returns the rows that start a transition."""
        lanes = self.lanes
        end = lanes.written if self.previewed else np.maximum(lanes.written - 1, 0)
        if not np.count_nonzero(end > self.taken):
            return NONE
        # Rows before these are overwritten, or will be next, if only by a preview.
        oldest = np.maximum(lanes.written - lanes.rows + lanes.margin + self.previewed, 0)
        begin = np.maximum(self.taken, oldest)
        if self._resumed:
            self._check_last_rows()
        if np.count_nonzero(oldest > self._oldest):
            self._forget(lanes.ids_between(np.maximum(self._oldest, oldest - lanes.rows), oldest))
        self._oldest, self.taken[:] = oldest, end
        return self._add(lanes.ids_between(begin, end))

    def _check_last_rows(self) -> None:
        """The next rows show whether the episodes went on after the run was resumed."""
        self._resumed, lanes = False, np.flatnonzero(self.taken)
        rows = self.lanes.id_of(lanes, self.taken[lanes] - 1)
        self._forget(rows[~self._start_transitions(rows)])

    def _start_transitions(self, rows: Array) -> Array:
        flat = self.lanes.flat
        known: Array = flat["action"].take(rows) != CLOSING
        known &= ~flat["first"].take(self.lanes.onward(rows))
        return known

    def _add(self, rows: Array) -> Array:
        known = self._start_transitions(rows)
        rows = rows if known.all() else rows[known]
        pairs = self.pairs(rows)
        if np.count_nonzero(self.newest.take(pairs) < 0):
            self._known = None
        self.newest[pairs] = rows  # of a pair that comes twice, the last row counts
        self._pair_of[rows] = pairs
        return rows

    def _forget(self, rows: Array) -> None:
        """Before these rows are used for others."""
        pairs = self._pair_of.take(rows)
        lost = pairs[(pairs >= 0) & (self.newest.take(pairs) == rows)]
        if lost.size:
            self.newest[lost] = UNKNOWN
            self._known = None
        self._pair_of[rows] = UNKNOWN

    def state(self) -> State:
        arrays = {"taken": self.taken, "oldest": self._oldest, "newest": self.newest}
        return {name: array.copy() for name, array in arrays.items()}

    def restore(self, state: State) -> None:
        """If the lanes hold other rows now, all of them are taken in again."""
        self.newest[:], self._pair_of[:], self._known = UNKNOWN, UNKNOWN, None
        self.taken[:], self._oldest[:], self._resumed = 0, 0, False
        if not state:
            return
        newest = restored.between(state, "newest", self.newest, UNKNOWN, self.lanes.capacity - 1)
        pairs = np.flatnonzero(newest >= 0)
        rows, written = newest[pairs], self.lanes.written
        ends = (("taken", self.taken), ("oldest", self._oldest))
        kept = {k: restored.between(state, k, like, 0, restored.MOST) for k, like in ends}
        if np.array_equal(self.pairs(rows), pairs) and (kept["taken"] <= written).all():
            self.newest[pairs], self._pair_of[rows], self._resumed = rows, pairs, True
            self.taken[:], self._oldest[:] = kept["taken"], kept["oldest"]
