"""How draws read lanes: which rows they may propose, and the n-step sums from rows.

NumPy makes tens of calls for that. The compiled library (`maths.compiled`) makes a few and gives
the same bits.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from manyhands.maths import compiled
from manyhands.maths.compiled import pointer
from manyhands.memory.storage.checking import CLOSING
from manyhands.types import Array

if TYPE_CHECKING:
    from manyhands.memory.storage.lanes import Lanes


class NStep(NamedTuple):
    """What follows each of b rows."""

    reward: Array  # [b] float32, the discounted sum
    discount: Array  # [b] float32, of the bootstrap: gamma^k times the discounts on the way
    bootstrap: Array  # [b] int64, the row to bootstrap from
    known: Array  # [b] bool; False: starts no transition, or one whose end is not written yet


class Record(ctypes.Structure):
    """`Lanes` in maths/kernels/draws.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "frame", "action", "reward", "discount", "first", "written",
        )),
        *((name, ctypes.c_int64) for name in ("lanes", "rows", "frame_bytes", "margin", "clear")),
    )  # fmt: skip


class Reader:
    """Reads lanes by the library if there is one."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._library = compiled.library()
        self._record = Record(
            lanes=lanes.spec.lanes,
            rows=lanes.rows,
            frame_bytes=lanes.flat["frame"][:1].nbytes,
            margin=lanes.margin,
            clear=lanes.margin + lanes.spec.stack - 1,
        )
        for name in ("frame", "action", "reward", "discount", "first"):
            setattr(self._record, name, pointer(lanes.flat[name]))
        self._record.written = pointer(lanes.written)
        self._at = ctypes.addressof(self._record)
        if not lanes.written.flags.c_contiguous:
            self._library = None

    def propose(self, size: int, rng: np.random.Generator) -> Array:
        """Ids of any rows that may be drawn from."""
        if self._library is None:
            return _propose(self._lanes, size, rng)
        count = self._library.candidates(self._at, None, 0)
        if not count:
            return np.empty(0, np.int64)
        ids = rng.integers(count, size=size)
        self._library.candidates(self._at, pointer(ids), size)
        return ids

    def n_step(self, ids: Array, n: int, gamma: float, *, all_known: bool) -> NStep:
        """The n-step sums from these rows. `all_known`: the caller knows that all are; faster."""
        if self._library is None or not ids.flags.c_contiguous or ids.dtype != np.int64:
            return _n_step(self._lanes, ids, n, gamma, all_known=all_known)
        count = len(ids)
        numbers, bootstrap = np.empty((2, count), np.float32), np.empty(count, np.int64)
        known = np.empty(count, np.bool_)
        at = pointer(numbers)
        self._library.n_step(
            self._at, pointer(ids), count, n, gamma, all_known,
            at, at + 4 * count, pointer(bootstrap), pointer(known),
        )  # fmt: skip
        return NStep(numbers[0], numbers[1], bootstrap, known)

    def gather(self, ids: Array, frames: Array) -> None:
        """The frames of these rows."""
        if self._library is None or not (ids.flags.c_contiguous and frames.flags.c_contiguous):
            source = self._lanes.flat["frame"]
            source.take(ids, axis=0, out=frames, mode="clip")  # "raise" would buffer
            return
        self._library.gather(self._at, pointer(ids), len(ids), pointer(frames))


def _propose(lanes: Lanes, size: int, rng: np.random.Generator) -> Array:
    oldest, count = lanes.candidates()
    end = np.cumsum(count)
    if not end[-1]:
        return np.empty(0, np.int64)
    place = rng.integers(end[-1], size=size)
    if len(end) == 1:  # the same without a search
        ids: Array = (place + oldest) % lanes.rows
        return ids
    lane = np.searchsorted(end, place, side="right")
    return lanes.id_of(lane, place + (oldest - end + count)[lane])


def _n_step(lanes: Lanes, ids: Array, n: int, gamma: float, *, all_known: bool) -> NStep:
    newest = np.arange(lanes.spec.lanes) * lanes.rows + (lanes.written - 1) % lanes.rows
    first, action, flat = lanes.flat["first"], lanes.flat["action"], lanes.flat
    at = lanes.onward(ids)
    if all_known:
        known = np.ones(len(ids), bool)
    else:
        known = (action.take(ids) != CLOSING) & ~first.take(at)
        known &= ids != newest.take(ids // lanes.rows)
    reward, discount = flat["reward"].take(ids), flat["discount"].take(ids) * np.float32(gamma)
    for _ in range(n - 1):
        onward = lanes.onward(at)
        continues = (discount > 0) & (action.take(at) != CLOSING)
        if not all_known:
            last = at == newest.take(at // lanes.rows)
            known &= ~(continues & last)  # its successor is not written yet
            continues &= ~last
        continues &= ~first.take(onward)
        reward += discount * np.where(continues, flat["reward"].take(at), np.float32(0))
        factor = flat["discount"].take(at) * np.float32(gamma)
        discount *= np.where(continues, factor, np.float32(1))
        at = np.where(continues, onward, at)
    return NStep(reward, discount, at, known)
