"""Lanes: one preallocated ring of rows per environment. Knows nothing of how rows are drawn.

A row is one observation: its newest frame, the action chosen on it, the reward and discount that
followed, `first`, and the remembered columns. An episode's last observation is a closing row of
its own, with action -1. Stacks and n-step sums are rebuilt by index arithmetic when read.

A row `continues` when the row after it is the same episode's next observation: it is no closing
row, and its successor is published and not `first`. A `first` that follows no closing row means
that the writer died: the row before it does not continue either, it is the last one known.
Only continuing rows start a transition; sums bootstrap from the first row that does not continue.

Rows are named by `id = lane * rows + place in the ring`. One lane has one writer, which fills rows
and then publishes them by raising `written`, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from manyhands.memory import layout
from manyhands.types import Array, EnvSpec, Failure, Rows, State

CLOSING = -1  # the action of a closing row
NONE = np.empty(0, np.int64)
Allocate = Callable[[tuple[int, ...], np.dtype], Array]


class NStep(NamedTuple):
    """What follows each of b rows."""

    reward: Array  # [b] float32, the discounted sum
    discount: Array  # [b] float32, of the bootstrap: gamma^k times the discounts passed
    bootstrap: Array  # [b] int64, the row to bootstrap from
    known: Array  # [b] bool; False: starts no transition, or one whose end is not written yet


class Storage(NamedTuple):
    """Where rows lie."""

    written: Array  # [lanes] int64, rows ever written
    arrays: dict[str, Array]  # [lanes, rows, ...] each, one for everything a row is made of


def storage(
    spec: EnvSpec, rows: int, columns: Mapping[str, str], allocate: Allocate = np.zeros
) -> Storage:
    arrays = {
        name: allocate((spec.lanes, rows, *kind.shape), kind.base)
        for name, kind in layout(spec, columns).items()
    }
    return Storage(allocate((spec.lanes,), np.dtype(np.int64)), arrays)


class Lanes:
    def __init__(
        self,
        spec: EnvSpec,
        rows: int,
        *,
        columns: Mapping[str, str],
        allocate: Allocate = np.zeros,
        margin: int = 0,
        kept: Storage | None = None,
    ) -> None:
        """`margin`: how many rows next to be overwritten readers stay clear of.

        Where readers are not the writer it must be 2 or more: a step may write two rows, and a
        writer killed while it did so leaves them torn and unpublished.
        """
        self.spec, self.rows, self.margin = spec, rows, margin
        self.written, self.arrays = kept or storage(spec, rows, columns, allocate)
        self.flat = {  # the same bytes, indexed by row id
            name: array.reshape(-1, *array.shape[2:]) for name, array in self.arrays.items()
        }
        self.columns = tuple(columns)
        self._begun = False  # whether every lane has a row
        self._clear = margin + spec.stack - 1  # rows ahead of the writer that are not read
        self._frame, self._action = self.flat["frame"], self.flat["action"]
        self._reward, self._discount = self.flat["reward"], self.flat["discount"]
        self._first = self.flat["first"]
        self._start = np.arange(spec.lanes) * rows
        self._back = np.arange(1 - spec.stack, 1)

    @property
    def capacity(self) -> int:
        return self.spec.lanes * self.rows

    @property
    def filled(self) -> int:
        return int(np.minimum(self.written, self.rows).sum())

    # --- Writing ----------------------------------------------------------------------------

    def extend(self, rows: Rows) -> None:
        """One row a lane, and a closing row where an episode ended; published together."""
        at = self._next()
        self._frame[at] = rows.frame
        self._action[at] = rows.action
        self._reward[at] = rows.reward
        self._discount[at] = rows.discount
        # Nothing is known before a lane's first row, whatever the episode had seen by then.
        self._first[at] = rows.first if self._begun else rows.first | (self.written == 0)
        self._begun = True
        for name in self.columns:
            self.flat[name][at] = rows.columns[name]
        if np.count_nonzero(rows.ended):
            self._close(np.flatnonzero(rows.ended), rows.last_frame)
            self.written += 1 + rows.ended
        else:
            self.written += 1

    def next_ids(self) -> Array:
        """The rows that the next `extend` will write first, one a lane."""
        ids: Array = self._start + self.written % self.rows
        return ids

    def _next(self) -> Array | slice:
        """The same rows; of one lane as a slice, which NumPy is quicker with."""
        if self.spec.lanes > 1:
            return self.next_ids()
        place = int(self.written[0]) % self.rows
        return slice(place, place + 1)

    def preview(self, frame: Array, first: Array) -> None:
        """Shows what the next `extend` will be acted on, before it is: its row is not published."""
        at = self._next()
        self._frame[at] = frame
        self._first[at] = first

    def _close(self, lanes: Array, last_frame: Array) -> None:
        ids = self._start[lanes] + (self.written[lanes] + 1) % self.rows
        self._frame[ids] = last_frame
        self._action[ids] = CLOSING
        for name in ("reward", "discount", "first", *self.columns):
            self.flat[name][ids] = 0

    def clear(self) -> None:
        self.written[:] = 0
        self._begun = False

    # --- Reading ----------------------------------------------------------------------------

    def look(self) -> None:
        """Before a draw: takes note of what others wrote. Here nobody else writes."""

    def torn(self, ids: Array) -> Array:  # noqa: ARG002
        """After a draw: which of these rows were overwritten meanwhile, by position."""
        return NONE

    def candidates(self) -> tuple[Array, Array]:
        """Of each lane the oldest row that may be drawn, by sequence number, and how many.

        The newest row is none: its successor is not there. Nor are, in a lane that overwrites,
        the rows whose stacks may reach what is gone.
        """
        oldest = np.where(self.overwrites, self.written - self.rows + self._clear, 0)
        return oldest, np.maximum(self.written - 1 - oldest, 0)

    def id_of(self, lane: Array, sequence: Array) -> Array:
        ids: Array = lane * self.rows + sequence % self.rows
        return ids

    def drawable(self, n: int) -> Array:
        """The ids of all rows that start an n-step transition. Walks through every row."""
        oldest, count = self.candidates()
        ids = self.ids_between(oldest, oldest + count)
        return ids[self.n_step(ids, n, 1.0).known]

    def ids_between(self, begin: Array, end: Array) -> Array:
        """The ids of the rows from `begin` up to `end` of each lane, by sequence number."""
        length = int((end - begin).max(initial=0))
        sequence = begin[:, None] + np.arange(length)
        ids: Array = sequence % self.rows + self._start[:, None]
        return ids[sequence < end[:, None]]

    def recent(self, back: int, n: int) -> tuple[Array, Array, Array]:
        """The rows about the place where each lane is written: ids [lanes, k]; how far behind that
        place each column lies [k], 1 being the newest and below it what a reader stays clear of
        next; and which rows start a known n-step transition [lanes, k].
        """
        behind = self.behind(back)
        ids = (self.written[:, None] - behind) % self.rows + self._start[:, None]
        there = int(behind[0])
        known = np.zeros(ids.shape, bool)
        known[:, : there - 1] = self._known(ids[:, :there], n)
        reach = np.where(self.overwrites, self.rows - self._clear, self.written)
        if int(np.minimum.reduce(reach)) < there:  # what is gone, or was never there
            known &= behind <= reach[:, None]
        return ids, behind, known

    def behind(self, back: int) -> Array:
        """The columns of `recent`; the whole ring if they would come round to one another."""
        whole = back + self._clear >= self.rows
        return np.arange(self.rows, 0, -1) if whole else np.arange(back, -self._clear, -1)

    def _known(self, ids: Array, n: int) -> Array:
        """Of consecutive rows up to the newest [lanes, k], but without it: as `n_step` says."""
        breaks = self._action.take(ids) == CLOSING
        breaks[:, :-1] |= self._first.take(ids[:, 1:])
        known: Array = ~breaks[:, :-1]
        if n > 1:  # nearer to the newest than n: known only if the sum ends on the way
            near = slice(max(0, known.shape[1] - n + 1), None)
            ends = breaks[:, 1:][:, near] | (self._discount.take(ids[:, :-1][:, near]) == 0)
            known[:, near] &= np.logical_or.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
        return known

    @property
    def overwrites(self) -> Array:
        """Which lanes have no row left that was never written."""
        full: Array = self.written > self.rows - self.margin
        return full

    def onward(self, ids: Array) -> Array:
        """The rows after these."""
        onward = ids + 1
        onward -= self.rows * (onward % self.rows == 0)
        return onward

    def n_step(self, ids: Array, n: int, gamma: float) -> NStep:
        newest = self._start + (self.written - 1) % self.rows
        at, known, _ = self._advance(ids, newest)
        reward, discount = self._reward.take(ids), self._discount.take(ids) * np.float32(gamma)
        for _ in range(n - 1):
            onward, continues, waits = self._advance(at, newest)
            alive = discount > 0
            known &= ~(alive & waits)
            at = self._add(reward, discount, at, onward, alive & continues, gamma)
        return NStep(reward, discount, at, known)

    def ahead(self, ids: Array, n: int, gamma: float) -> tuple[Array, Array, Array]:
        """Reward, discount and bootstrap as `n_step` has them, in fewer calls, of `known` rows."""
        at = self.onward(ids)
        reward, discount = self._reward.take(ids), self._discount.take(ids) * np.float32(gamma)
        for _ in range(n - 1):
            onward = self.onward(at)
            going = (discount > 0) & (self._action.take(at) != CLOSING)
            going &= ~self._first.take(onward)
            at = self._add(reward, discount, at, onward, going, gamma)
        return reward, discount, at

    def _add(
        self, reward: Array, discount: Array, at: Array, onward: Array, going: Array, gamma: float
    ) -> Array:
        """Adds the rows `at` to the sums that are going on; where all have come to."""
        reward += discount * np.where(going, self._reward.take(at), np.float32(0))
        factor = self._discount.take(at) * np.float32(gamma)
        discount *= np.where(going, factor, np.float32(1))
        return np.where(going, onward, at)

    def observations(self, ids: Array, out: Array) -> None:
        """Rebuilds observations into `out` [b, *observation_shape], of the frames' own type.

        Frames before a `first` are zeros, as the emulator pads.
        """
        if self.spec.stack == 1:
            self._frame.take(ids, axis=0, out=out, mode="clip")  # "raise" would buffer
            return
        place = (ids % self.rows)[:, None]
        at = (ids[:, None] - place) + (place + self._back) % self.rows
        self._frame.take(at, axis=0, out=out, mode="clip")
        first = self._first[at[:, 1:]]
        if first.any():  # a frame is of an earlier episode if any later one was a `first`
            before = np.logical_or.accumulate(first[:, ::-1], axis=1)[:, ::-1]
            out[:, :-1][before] = 0

    def _advance(self, ids: Array, newest: Array) -> tuple[Array, Array, Array]:
        """The rows after these; whether these continue; whether they will, once there is one."""
        onward = self.onward(ids)
        last = ids == newest.take(ids // self.rows)
        acted = self._action.take(ids) != CLOSING
        return onward, acted & ~(self._first.take(onward) | last), acted & last

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """Views, not copies, of what is used (it may be most of the machine's memory).

        Write them out before the next `extend`.
        """
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
        self.clear()  # whoever reads meanwhile finds nothing rather than a mixture
        for name, array in arrays.items():
            self.arrays[name][:, :used] = array
        self.written[:] = written
