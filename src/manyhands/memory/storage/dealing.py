"""Distributes the rows of saved lanes over other lanes: more, fewer, longer or shorter ones.

The newest rows of every saved lane are kept, as many as fit. They are laid end to end, in time
order within each lane, and cut into the new lanes. Each piece begins with a `first` row: what came
before it is not known there. So no transition reaches from one piece into another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from manyhands.memory.storage.checking import refuse_strange_rows
from manyhands.memory.storage.lanes import Lanes
from manyhands.memory.storage.priorities import SharedPriorities
from manyhands.types import Array, State, restored


class Piece(NamedTuple):
    """Consecutive rows of a saved lane, and where they go."""

    lane: int
    sequence: int  # of the first row
    length: int
    to_lane: int
    to_place: int


def pieces(written: Array, rows: int, to_lanes: int, to_rows: int) -> Iterator[Piece]:
    """Where the newest rows of lanes with `rows` rows go."""
    kept = _newest(np.minimum(written, rows), to_lanes * to_rows)
    each = -(-int(kept.sum()) // to_lanes)  # rows of a new lane
    lane = place = 0
    for number, count in enumerate(kept.tolist()):
        sequence = int(written[number]) - count
        while count:
            length = min(count, each - place)
            yield Piece(number, sequence, length, lane, place)
            sequence, count, place = sequence + length, count - length, place + length
            if place == each:
                lane, place = lane + 1, 0


def _newest(there: Array, room: int) -> Array:
    """How many rows of each lane are kept: all, or as many as each may have for all to fit."""
    low, high = 0, int(there.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(np.minimum(there, middle).sum()) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return np.minimum(there, low)


def copy_piece(piece: Piece, rows: int, saved: Array, into: Array) -> None:
    """`rows`: of a saved lane, which is a ring."""
    start, done = piece.sequence % rows, 0
    while done < piece.length:
        length = min(piece.length - done, rows - start)
        to = piece.to_place + done
        into[piece.to_lane, to : to + length] = saved[piece.lane, start : start + length]
        start, done = 0, done + length


def check(state: State, like: Mapping[str, Array]) -> tuple[Array, int]:
    """How far the saved lanes are written, and their length. Refuses rows of another kind."""
    rows = restored.count(state, "rows", least=1)
    written = np.asarray(state["written"])
    lanes = np.zeros(written.size, np.int64)
    restored.between(state, "written", lanes, 0, restored.MOST)
    used = min(int(written.max(initial=0)), rows)
    expected = {k: ((written.size, used, *a.shape[2:]), a.dtype) for k, a in like.items()}
    saved = {name: (array.shape, array.dtype) for name, array in state["arrays"].items()}
    if saved != expected:
        raise ValueError(f"the saved rows hold {', '.join(sorted(saved))}, or frames that differ")
    return written, rows


def deal(state: State, lanes: Lanes) -> tuple[list[Piece], int]:
    """Fills these lanes. Returns what went where, and how many rows were kept."""
    written, rows = check(state, lanes.arrays)
    refuse_strange_rows(state["arrays"], written, lanes.spec)
    dealt = list(pieces(written, rows, lanes.spec.lanes, lanes.rows))
    lanes.clear()
    for piece in dealt:
        for name, array in lanes.arrays.items():
            copy_piece(piece, rows, state["arrays"][name], array)
        lanes.arrays["first"][piece.to_lane, piece.to_place] = True
        lanes.written[piece.to_lane] += piece.length
    return dealt, sum(piece.length for piece in dealt)


def deal_priorities(
    state: State, dealt: list[Piece], lanes: Lanes, first_lane: int, into: SharedPriorities, n: int
) -> None:
    """The priorities of these lanes, which begin with `first_lane` of all, for one reader.

    A row that starts a transition only now has the priority of a new row. `n`: of the n-step sum.
    """
    column, largest = np.zeros((lanes.spec.lanes, lanes.rows)), 1.0
    for saved in state["priorities"].values():
        known, taken, from_lane = _checked(state, saved, into.MOST)
        largest = min(max(largest, restored.number(saved, "largest", least=0)), into.MOST)
        for piece in dealt:
            lane, to_lane = piece.lane - from_lane, piece.to_lane - first_lane
            if 0 <= lane < len(known) and 0 <= to_lane < len(column):
                here = piece._replace(lane=lane, to_lane=to_lane)
                copy_piece(here, int(state["rows"]), known, column)
                _clear_unknown(here, int(taken[lane]), column)
    drawable = np.zeros(column.size, bool)
    drawable[lanes.drawable(n)] = True
    flat = column.reshape(-1)
    flat[~drawable] = 0.0
    flat[drawable & (flat == 0)] = largest
    into.fill(column, lanes.written, largest)


def _checked(state: State, saved: State, most: float) -> tuple[Array, Array, int]:
    """A saved reader's priorities (0 for rows it had not drawn from yet), how many rows of each
    lane it knew, and its first lane.
    """
    written, rows = np.asarray(state["written"]), restored.count(state, "rows", least=1)
    used = min(int(written.max(initial=0)), rows)
    known = restored.finite(saved["priorities"], "priorities")
    if known.ndim != 2 or known.shape[1] > used or len(known) > written.size:
        raise ValueError("the priorities are of other rows")
    restored.between(saved, "priorities", np.zeros(known.shape), 0.0, most)
    taken = np.zeros(len(known), np.int64)
    taken[:] = restored.between(saved, "taken", taken, 0, restored.MOST)
    padded = np.pad(known, ((0, 0), (0, used - known.shape[1])))
    return padded, taken, restored.count(saved, "first_lane")


def _clear_unknown(piece: Piece, taken: int, column: Array) -> None:
    """Rows written since the last draw have no priority yet; that of the row before is left."""
    new = min(piece.length, max(0, piece.sequence + piece.length - taken))
    end = piece.to_place + piece.length
    column[piece.to_lane, end - new : end] = 0.0
