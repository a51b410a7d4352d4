"""Lanes: one preallocated ring of rows per environment. How rows are drawn is not decided here.

A row is one observation: its newest frame, the action chosen on it, the reward and discount that
followed, `first`, and the remembered columns. An episode's last observation has a closing row of
its own, with action -1. Stacks and n-step sums are rebuilt by index arithmetic when read.

A row `continues` if the next row is the next observation of the same episode: the row is not a
closing row, and the next row is published and not `first`. A `first` without a closing row before
it means that the writer died. The row before it does not continue: it is the last one known.
Only continuing rows start a transition. Sums bootstrap from the first row that does not continue.

The id of a row is `lane * rows + place in the ring`. Each lane has one writer. The writer fills
rows and then publishes them by raising `written`, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from manyhands.memory import layout
from manyhands.memory.storage.checking import CLOSING as CLOSING
from manyhands.memory.storage.checking import refuse_strange_rows
from manyhands.memory.storage.reading import NStep as NStep
from manyhands.memory.storage.reading import Reader
from manyhands.types import Array, EnvSpec, Failure, Rows, State

NONE = np.empty(0, np.int64)
Allocate = Callable[[tuple[int, ...], np.dtype], Array]


class Storage(NamedTuple):
    """The arrays that hold the rows."""

    written: Array  # [lanes] int64, rows ever written
    arrays: dict[str, Array]  # [lanes, rows, ...] each, by name


def allocate_storage(
    spec: EnvSpec, rows: int, columns: Mapping[str, str], allocate: Allocate = np.zeros
) -> Storage:
    arrays = {
        name: allocate((spec.lanes, rows, *kind.shape), kind.base)
        for name, kind in layout(spec, columns).items()
    }
    return Storage(allocate((spec.lanes,), np.dtype(np.int64)), arrays)


class Lanes:
    mid_rollout = False  # rows are published one step at a time

    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        columns: Mapping[str, str],
        allocate: Allocate = np.zeros,
        margin: int = 0,
        storage: Storage | None = None,
    ) -> None:
        """`margin`: readers avoid this many of the rows that will be overwritten next.

        It must be at least 2 where another process writes: a step may write two rows, and a
        writer killed meanwhile leaves them torn and unpublished.
        """
        self.spec, self.rows, self.margin = spec, rows, margin
        self.written, self.arrays = storage or allocate_storage(spec, rows, columns, allocate)
        self.flat = {  # the same bytes, indexed by row id
            name: array.reshape(-1, *array.shape[2:]) for name, array in self.arrays.items()
        }
        self.columns = tuple(columns)
        self._begun = False  # whether every lane has a row
        self._clear = margin + spec.stack - 1  # rows ahead of the writer that readers avoid
        self._frame, self._action = self.flat["frame"], self.flat["action"]
        self._reward, self._discount = self.flat["reward"], self.flat["discount"]
        self._first = self.flat["first"]
        self._start = np.arange(spec.lanes) * rows
        self._back = np.arange(1 - spec.stack, 1)

    @cached_property
    def reader(self) -> Reader:
        return Reader(self)

    def __getstate__(self) -> dict[str, Any]:
        """A reader has addresses of its process."""
        return {name: value for name, value in vars(self).items() if name != "reader"}

    @property
    def capacity(self) -> int:
        return self.spec.lanes * self.rows

    @property
    def filled(self) -> int:
        return int(np.minimum(self.written, self.rows).sum())

    def extend(self, rows: Rows) -> None:
        """Writes a row per lane, and a closing row where an episode ended. Publishes together."""
        at = self._next()
        self._frame[at] = rows.frame
        self._action[at] = rows.action
        self._reward[at] = rows.reward
        self._discount[at] = rows.discount
        # Nothing is known before a lane's first row, even if its episode began earlier.
        self._first[at] = rows.first if self._begun else rows.first | (self.written == 0)
        self._begun = True
        for name in self.columns:
            self.flat[name][at] = rows.columns[name]
        if np.count_nonzero(rows.ended):
            self._close(np.flatnonzero(rows.ended), rows.last_frame, rows.last_columns or {})
            self.written += 1 + rows.ended
        else:
            self.written += 1

    def next_ids(self) -> Array:
        """The row of each lane that the next `extend` will write first."""
        ids: Array = self._start + self.written % self.rows
        return ids

    def _next(self) -> Array | slice:
        """The same rows. For one lane a slice, which NumPy handles faster."""
        if self.spec.lanes > 1:
            return self.next_ids()
        place = int(self.written[0]) % self.rows
        return slice(place, place + 1)

    def preview(self, frame: Array, first: Array) -> None:
        """Writes the next observation early, for readers in this process. Publishes nothing."""
        at = self._next()
        self._frame[at] = frame
        self._first[at] = first

    def _close(self, lanes: Array, last_frame: Array, columns: Mapping[str, Array]) -> None:
        ids = self._start[lanes] + (self.written[lanes] + 1) % self.rows
        self._frame[ids] = last_frame
        self._action[ids] = CLOSING
        for name in ("reward", "discount", "first", *self.columns):
            self.flat[name][ids] = columns.get(name, 0)

    def clear(self) -> None:
        self.written[:] = 0
        self._begun = False

    # --- Reading ----------------------------------------------------------------------------

    def refresh(self) -> None:
        """Called before a draw: notes what other writers published. Here there are none."""

    def torn(self, ids: Array) -> Array:  # noqa: ARG002
        """Called after a draw: positions in `ids` of rows that were overwritten meanwhile."""
        return NONE

    def candidates(self) -> tuple[Array, Array]:
        """For each lane: the sequence number of the oldest row that may be drawn, and how many may.

        The newest row may not: its successor is missing. In a lane that overwrites, neither may
        rows whose stacks reach overwritten rows.
        """
        oldest = np.where(self.overwrites, self.written - self.rows + self._clear, 0)
        return oldest, np.maximum(self.written - 1 - oldest, 0)

    def id_of(self, lane: Array, sequence: Array) -> Array:
        ids: Array = lane * self.rows + sequence % self.rows
        return ids

    def drawable(self, n: int) -> Array:
        """The ids of all rows that start an n-step transition. Reads every row."""
        oldest, count = self.candidates()
        ids = self.ids_between(oldest, oldest + count)
        return ids[self.n_step(ids, n, 1.0).known]

    def ids_between(self, begin: Array, end: Array) -> Array:
        """The ids of each lane's rows from sequence number `begin` up to `end`."""
        length = int((end - begin).max(initial=0))
        sequence = begin[:, None] + np.arange(length)
        ids: Array = sequence % self.rows + self._start[:, None]
        return ids[sequence < end[:, None]]

    def recent(self, back: int, n: int) -> tuple[Array, Array, Array]:
        """The rows around each lane's write position: their ids [lanes, k]; how far each column
        lies behind that position [k] (1 is the newest row, less is overwritten next); and which
        rows start a known n-step transition [lanes, k].
        """
        behind = self.behind(back)
        ids = (self.written[:, None] - behind) % self.rows + self._start[:, None]
        there = int(behind[0])
        known = np.zeros(ids.shape, bool)
        known[:, : there - 1] = self._known(ids[:, :there], n)
        reach = np.where(self.overwrites, self.rows - self._clear, self.written)
        if int(np.minimum.reduce(reach)) < there:  # overwritten, or never written
            known &= behind <= reach[:, None]
        return ids, behind, known

    def behind(self, back: int) -> Array:
        """The columns of `recent`. The whole ring if they would overlap."""
        whole = back + self._clear >= self.rows
        return np.arange(self.rows, 0, -1) if whole else np.arange(back, -self._clear, -1)

    def _known(self, ids: Array, n: int) -> Array:
        """`NStep.known` of consecutive rows [lanes, k] that end with the newest; without that."""
        breaks = self._action.take(ids) == CLOSING
        breaks[:, :-1] |= self._first.take(ids[:, 1:])
        known: Array = ~breaks[:, :-1]
        if n > 1:  # less than n from the newest: known only if the sum ends before it
            near = slice(max(0, known.shape[1] - n + 1), None)
            ends = breaks[:, 1:][:, near] | (self._discount.take(ids[:, :-1][:, near]) == 0)
            known[:, near] &= np.logical_or.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        return known

    @property
    def overwrites(self) -> Array:
        """Which lanes overwrite old rows now."""
        full: Array = self.written > self.rows - self.margin
        return full

    def onward(self, ids: Array) -> Array:
        """The row after each."""
        onward = ids + 1
        onward -= self.rows * (onward % self.rows == 0)
        return onward

    def n_step(self, ids: Array, n: int, gamma: float, *, all_known: bool = False) -> NStep:
        """The n-step sums from these rows. `all_known`: the caller knows that all are; faster."""
        return self.reader.n_step(ids, n, gamma, all_known=all_known)

    def observations(self, ids: Array, out: Array) -> None:
        """Rebuilds observations into `out` [b, *observation_shape], with the frames' dtype.

        Frames before a `first` are zeros, as ale-py pads.
        """
        if self.spec.stack == 1:
            self.reader.gather(ids, out)
            return
        place = (ids % self.rows)[:, None]
        at = (ids[:, None] - place) + (place + self._back) % self.rows
        self._frame.take(at, axis=0, out=out, mode="clip")
        first = self._first[at[:, 1:]]
        if first.any():  # a frame belongs to an earlier episode if any later one is `first`
            before = np.logical_or.accumulate(first[:, ::-1], axis=1)[:, ::-1]
            out[:, :-1][before] = 0

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """Views of the rows in use, as copies may not fit. Write them before the next `extend`."""
        used = min(int(self.written.max()), self.rows)
        return {
            "rows": self.rows,
            "written": self.written.copy(),
            "arrays": {name: array[:, :used] for name, array in self.arrays.items()},
        }

    def restore(self, state: State) -> None:
        written, arrays = np.asarray(state["written"]), state["arrays"]
        used = min(int(written.max(initial=0)), self.rows)
        expected = {k: ((a.shape[0], used, *a.shape[2:]), a.dtype) for k, a in self.arrays.items()}
        saved = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        if (state["rows"], written.shape, saved) != (self.rows, self.written.shape, expected):
            raise Failure(
                f"the saved memory has {written.size} lanes of {state['rows']} rows "
                f"({', '.join(sorted(saved))}), this one {self.spec.lanes} of {self.rows} "
                f"({', '.join(sorted(expected))}), or its frames differ",
                "Resume with the environments and the memory.capacity of the saved run.",
            )
        refuse_strange_rows(arrays, written, self.spec)
        self.clear()  # a concurrent reader finds nothing rather than a mixture
        for name, array in arrays.items():
            self.arrays[name][:, :used] = array
        self.written[:] = written
