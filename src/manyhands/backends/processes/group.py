"""A group on one machine: all-reduce through shared memory, in rounds. It survives kills.

Each member writes its vector into its slot, averages its slice of all slots, and reads the slices
of the others. Rounds alternate between two sets of slots, so a member that is ahead writes where no
other reads.

The members of a round are decided once, under a lock, when every live member has arrived: all with
a complete slot, even if they died since. The supervisor's count of ends says which members live. A
slice depends on the slots alone. If a member is killed while it averages, every other computes its
slice again, with the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from manyhands.backends.processes import control, futex, lock, segment
from manyhands.backends.processes.control import ENDS, MAIN, MOST_CLIENTS, PROGRESS
from manyhands.backends.processes.packing import Endpoint
from manyhands.types import Array, Average, BadRequest

if TYPE_CHECKING:
    from torch import Tensor

ARRIVED, DONE, CLIENT, LIFE, JOINED = range(5)  # a member's row; only the member writes it
WORDS = 8  # per row: one cache line
MOST_NUMBERS = 8
NOTHING = -1  # the length of a newcomer's vector
LINE = 64  # numbers
OTHERS_S = 0.2  # between two checks whether the awaited members make progress
LOOK_S = 0.05  # between two checks for deaths and for commands to park or stop


class Board(NamedTuple):
    """What the members share."""

    rows: Array  # [n, WORDS]
    decided: Array  # [1] the newest round whose members are known
    bell: Array  # [1] changes whenever something here has changed
    lives: Array  # [2, n] per round: each member's incarnation + 1; 0: not in the round
    lengths: Array  # [2, n] of the vectors
    counts: Array  # [2, n] of the numbers sent with a vector
    numbers: Array  # [2, n, MOST_NUMBERS]
    slots: Array  # [2, n, length]
    mean: Array  # [2, length]


class Group(Endpoint):
    """One process' end of the group."""

    def __init__(self, table: Array, board: Board, guard: lock.Lock, client: int) -> None:
        self._table, self._board, self._guard, self._client = table, board, guard, client
        self._rows = board.rows
        self.obey: Callable[[], None] = control.obey_command  # while it waits for others
        self._bell_at = segment.address_of(board.bell)
        self._me = NOTHING
        self._newcomer = False
        self._catch_up: Callable[[], None] = lambda: None

    @cached_property
    def _read_into(self) -> Array:
        """Reused, because fresh memory every round would mean fresh pages every round."""
        return np.empty(self._board.mean.shape[1], np.float32)

    # --- Members --------------------------------------------------------------------------------

    def join(self, index: int, catch_up: Callable[[], None]) -> bool:
        self._me, self._catch_up = index, catch_up
        self._newcomer = bool(self._rows[index, JOINED])
        if not self._newcomer:
            self._register()
        return self._newcomer

    def _register(self) -> None:
        row = self._rows[self._me]
        row[CLIENT], row[LIFE] = self._client, self._table[self._client, ENDS]
        row[JOINED] = 1

    def members(self) -> frozenset[int]:
        return frozenset(np.flatnonzero(self._alive()).tolist())

    def _alive(self) -> Array:
        """A member lives until the supervisor counts its end. Those not here yet count as alive."""
        rows = self._rows
        alive: Array = (rows[:, JOINED] == 0) | (
            self._table[rows[:, CLIENT], ENDS] == rows[:, LIFE]
        )
        return alive

    # --- A round --------------------------------------------------------------------------------

    def reduce(self, vector: Tensor, *numbers: float) -> Average:
        """A newcomer's vector is ignored: it was computed with old parameters.

        The average is valid until the caller's next round.
        """
        if vector.numel() > self._board.slots.shape[2] or len(numbers) > MOST_NUMBERS:
            raise ValueError(f"{vector.numel()} numbers in a group of {self._board.slots.shape[2]}")
        import torch

        newcomer, self._newcomer = self._newcomer, False
        if newcomer:
            now = self.enter()
        else:
            now, slot = self.slot()
            torch.from_numpy(slot)[: vector.numel()].copy_(vector.detach().reshape(-1))
            self.arrive(now, vector.numel(), numbers)
        self.wait_until_decided(now)
        if newcomer:
            self._catch_up()
        mean, sent = self.complete(now)
        return Average(None if mean is None else torch.from_numpy(mean), sent)

    def slot(self) -> tuple[int, Array]:
        """The next round, and where this member writes its vector."""
        now = int(self._board.decided[0]) + 1
        slot: Array = self._board.slots[now % 2, self._me]
        return now, slot

    def arrive(self, now: int, length: int, numbers: tuple[float, ...]) -> None:
        """With the vector in the slot."""
        board, me, half = self._board, self._me, now % 2
        board.numbers[half, me, : len(numbers)] = numbers
        board.lengths[half, me], board.counts[half, me] = length, len(numbers)
        self._rows[me, ARRIVED] = now
        self._ring()

    def wait_until_decided(self, now: int) -> None:
        self._wait(lambda: self._is_decided(now), lambda: self._not_arrived(now))

    def complete(self, now: int) -> tuple[Array | None, dict[int, tuple[float, ...]]]:
        """The average of a round that is decided; None: no member had a vector."""
        given = self._given(now)
        self._average(now, given, self._me)
        self._rows[self._me, DONE] = now
        self._ring()
        self._wait(lambda: not self._missing(now), lambda: self._missing(now))
        return self._read(now, given)

    def enter(self) -> int:
        """Joins between two decisions. A complete vector of the previous incarnation counts."""
        with self._guard:
            now = int(self._board.decided[0]) + 1
            if self._rows[self._me, ARRIVED] != now:
                self._board.lengths[now % 2, self._me] = NOTHING
            self._rows[self._me, ARRIVED] = now
            self._register()
        self._ring()
        return now

    def _is_decided(self, now: int) -> bool:
        """The first member to see that all have arrived decides."""
        board = self._board
        if board.decided[0] < now and self._all_arrived(now):
            with self._guard:
                if board.decided[0] < now and self._all_arrived(now):
                    arrived = self._rows[:, ARRIVED] == now
                    board.lives[now % 2] = np.where(arrived, self._rows[:, LIFE] + 1, 0)
                    board.decided[0] = now
            self._ring()
        return bool(board.decided[0] >= now)

    def _all_arrived(self, now: int) -> bool:
        return bool((self._rows[self._alive(), ARRIVED] == now).all())

    def _not_arrived(self, now: int) -> list[int]:
        return np.flatnonzero(self._alive() & (self._rows[:, ARRIVED] != now)).tolist()

    def _given(self, now: int) -> list[int]:
        """The members whose vectors are averaged."""
        board, half = self._board, now % 2
        given = np.flatnonzero((board.lives[half] > 0) & (board.lengths[half] >= 0)).tolist()
        if len({int(board.lengths[half, member]) for member in given}) > 1:
            raise ValueError("vectors of different lengths in one round")
        return given

    # --- Slices ---------------------------------------------------------------------------------

    def _slice(self, now: int, member: int, length: int) -> slice:
        there = np.flatnonzero(self._board.lives[now % 2]).tolist()
        step = -(-length // (len(there) * LINE)) * LINE
        place = there.index(member)
        return slice(min(place * step, length), min((place + 1) * step, length))

    def _average(self, now: int, given: list[int], member: int) -> None:
        """Averages one member's slice, in the order of the members."""
        if not given:
            return
        half = now % 2
        where = self._slice(now, member, int(self._board.lengths[half, given[0]]))
        _mean(self._board.slots[half], given, where, self._board.mean[half, where])

    def _missing(self, now: int) -> list[int]:
        """Live members of the round that have not averaged their slice."""
        lives, rows = self._board.lives[now % 2], self._rows
        lives_on = self._table[rows[:, CLIENT], ENDS] + 1 == lives
        return np.flatnonzero((lives > 0) & (rows[:, DONE] < now) & lives_on).tolist()

    def _read(
        self, now: int, given: list[int]
    ) -> tuple[Array | None, dict[int, tuple[float, ...]]]:
        board, half = self._board, now % 2
        if not given:
            return None, {}
        length = int(board.lengths[half, given[0]])
        mean = self._read_into[:length]
        mean[:] = board.mean[half, :length]
        died_averaging = (board.lives[half] > 0) & (self._rows[:, DONE] < now)
        for member in np.flatnonzero(died_averaging).tolist():
            where = self._slice(now, member, length)
            _mean(board.slots[half], given, where, mean[where])
        numbers = {
            member: tuple(board.numbers[half, member, : board.counts[half, member]].tolist())
            for member in given
        }
        return mean, numbers

    # --- Waiting --------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Wakes the others. The word never has the same value twice."""
        self._board.bell[0] = time.monotonic_ns()
        futex.wake(self._bell_at)

    def _wait(self, ready: Callable[[], bool], awaited: Callable[[], list[int]]) -> None:
        others, look_at_s = -1, time.monotonic() + OTHERS_S
        while True:
            heard = int(self._board.bell[0])
            if ready():
                return
            self.obey()
            if time.monotonic() >= look_at_s:
                look_at_s, before = time.monotonic() + OTHERS_S, others
                others = self._progress_of(awaited())
                if before not in (-1, others):
                    control.progress()
            with control.waiting():
                futex.wait(self._bell_at, heard, LOOK_S)

    def _progress_of(self, members: list[int]) -> int:
        """A number that changes when one of them makes progress, or has not joined yet.

        The supervisor judges by their own rows whether they hang.
        """
        rows = self._rows[members]
        if (rows[:, JOINED] == 0).any():
            return time.monotonic_ns()
        return int(self._table[rows[:, CLIENT], PROGRESS].sum())

    @property
    def address(self) -> int:
        """The same for all ends of the group in this process, and for no other group."""
        return self._bell_at

    def end_of(self, client: int) -> Group:
        return Group(self._table, self._board, self._guard, client)

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        return Group, (self._table, self._board, self._guard, client)


def _mean(slots: Array, given: list[int], where: slice, into: Array) -> None:
    into[:] = slots[given[0], where]
    for member in given[1:]:
        into += slots[member, where]
    into /= np.float32(len(given))


def make(table: Array, n: int, numbers: int) -> Group:
    if not 1 <= n < MOST_CLIENTS:
        raise BadRequest(f"a group of {n}", f"use 1 to {MOST_CLIENTS - 1} learners")
    word = np.int64
    board = Board(
        rows=segment.allocate((n, WORDS), word),
        decided=segment.allocate((1,), word),
        bell=segment.allocate((1,), word),
        lives=segment.allocate((2, n), word),
        lengths=segment.allocate((2, n), word),
        counts=segment.allocate((2, n), word),
        numbers=segment.allocate((2, n, MOST_NUMBERS), np.float64),
        slots=segment.allocate((2, n, numbers), np.float32),
        mean=segment.allocate((2, numbers), np.float32),
    )
    return Group(table, board, lock.Lock(), MAIN)
