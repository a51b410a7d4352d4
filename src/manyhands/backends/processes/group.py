"""A group on one machine: all-reduce through shared memory, in rounds, whoever is killed when.

Each member writes its vector into its slot, averages its slice of all slots, and reads the slices
of the others. Rounds use two sets of slots in turn, so that who is ahead writes where nobody reads.

Who is in a round is decided once, under a lock, when every member that lives has arrived: all
whose slot was whole by then, the dead among them included. Who lives is the supervisor's word (its
count of ends). A slice is a function of the slots alone: that of a member killed while it averaged
is computed again by everybody who needs it, and has the same bits.
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
WORDS = 8  # a row; one cache line
MOST_NUMBERS = 8
NOTHING = -1  # the length of what a newcomer brings
LINE = 64  # numbers
OTHERS_S = 0.2  # between two looks whether those who are waited for go on
LOOK_S = 0.05  # between two looks whether somebody died, or we are told to park or stop


class Board(NamedTuple):
    """What the members share."""

    rows: Array  # [n, WORDS]
    decided: Array  # [1] the newest round whose members are known
    bell: Array  # [1] rung whenever something here has changed
    lives: Array  # [2, n] of a round: each member's life, 1 and more; 0: it is not in it
    lengths: Array  # [2, n] of the vectors
    counts: Array  # [2, n] of the numbers that go along
    numbers: Array  # [2, n, MOST_NUMBERS]
    slots: Array  # [2, n, length]
    mean: Array  # [2, length]


class Group(Endpoint):
    """One process' end."""

    def __init__(self, table: Array, board: Board, guard: lock.Lock, client: int) -> None:
        self._table, self._board, self._guard, self._client = table, board, guard, client
        self._rows = board.rows
        self._bell_at = segment.address_of(board.bell)
        self._me = NOTHING
        self._newcomer = False
        self._catch_up: Callable[[], None] = lambda: None

    @cached_property
    def _own_slots(self) -> list[Tensor]:
        import torch

        return [torch.from_numpy(slots[self._me]) for slots in self._board.slots]

    @cached_property
    def _read_into(self) -> Array:
        """Kept: a new one every round would be new pages of the kernel's every round."""
        return np.empty(self._board.mean.shape[1], np.float32)

    # --- Members --------------------------------------------------------------------------------

    def join(self, index: int, catch_up: Callable[[], None]) -> bool:
        self._me, self._catch_up = index, catch_up
        self._newcomer = bool(self._rows[index, JOINED])
        if not self._newcomer:
            self._sit_down()
        return self._newcomer

    def _sit_down(self) -> None:
        row = self._rows[self._me]
        row[CLIENT], row[LIFE] = self._client, self._table[self._client, ENDS]
        row[JOINED] = 1

    def members(self) -> frozenset[int]:
        return frozenset(np.flatnonzero(self._alive()).tolist())

    def _alive(self) -> Array:
        """Who has not come yet is expected; who came lives until the supervisor counts its end."""
        rows = self._rows
        alive: Array = (rows[:, JOINED] == 0) | (
            self._table[rows[:, CLIENT], ENDS] == rows[:, LIFE]
        )
        return alive

    # --- A round --------------------------------------------------------------------------------

    def reduce(self, vector: Tensor, *numbers: float) -> Average:
        """A newcomer's vector is not taken: it was made from what it knew before.

        The average is the caller's until the next round.
        """
        if vector.numel() > self._board.slots.shape[2] or len(numbers) > MOST_NUMBERS:
            raise ValueError(f"{vector.numel()} numbers in a group of {self._board.slots.shape[2]}")
        newcomer, self._newcomer = self._newcomer, False
        now = self._come_in() if newcomer else self._arrive(vector, numbers)
        self._wait(lambda: self._is_decided(now), lambda: self._not_arrived(now))
        if newcomer:
            self._catch_up()
        given = self._given(now)
        self._average(now, given, self._me)
        self._rows[self._me, DONE] = now
        self._ring()
        self._wait(lambda: not self._missing(now), lambda: self._missing(now))
        return self._read(now, given)

    def _arrive(self, vector: Tensor, numbers: tuple[float, ...]) -> int:
        board, me = self._board, self._me
        now = int(board.decided[0]) + 1
        half = now % 2
        self._own_slots[half][: vector.numel()].copy_(vector.detach().reshape(-1))
        board.numbers[half, me, : len(numbers)] = numbers
        board.lengths[half, me], board.counts[half, me] = vector.numel(), len(numbers)
        self._rows[me, ARRIVED] = now
        self._ring()
        return now

    def _come_in(self) -> int:
        """Between two decisions. What the one before left whole for this round stands."""
        with self._guard:
            now = int(self._board.decided[0]) + 1
            if self._rows[self._me, ARRIVED] != now:
                self._board.lengths[now % 2, self._me] = NOTHING
            self._rows[self._me, ARRIVED] = now
            self._sit_down()
        self._ring()
        return now

    def _is_decided(self, now: int) -> bool:
        """By whoever sees first that all are there."""
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
        """Those whose vectors are averaged."""
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
        """That member's slice, in the order of the members."""
        if not given:
            return
        half = now % 2
        where = self._slice(now, member, int(self._board.lengths[half, given[0]]))
        _mean(self._board.slots[half], given, where, self._board.mean[half, where])

    def _missing(self, now: int) -> list[int]:
        """Members of the round that live and have not done their slice."""
        lives, rows = self._board.lives[now % 2], self._rows
        lives_on = self._table[rows[:, CLIENT], ENDS] + 1 == lives
        return np.flatnonzero((lives > 0) & (rows[:, DONE] < now) & lives_on).tolist()

    def _read(self, now: int, given: list[int]) -> Average:
        import torch

        board, half = self._board, now % 2
        if not given:
            return Average(None, {})
        length = int(board.lengths[half, given[0]])
        mean = self._read_into[:length]
        mean[:] = board.mean[half, :length]
        died_over_it = (board.lives[half] > 0) & (self._rows[:, DONE] < now)
        for member in np.flatnonzero(died_over_it).tolist():
            where = self._slice(now, member, length)
            _mean(board.slots[half], given, where, mean[where])
        numbers = {
            member: tuple(board.numbers[half, member, : board.counts[half, member]].tolist())
            for member in given
        }
        return Average(torch.from_numpy(mean), numbers)

    # --- Waiting --------------------------------------------------------------------------------

    def _ring(self) -> None:
        """The bell's word is never the same twice."""
        self._board.bell[0] = time.monotonic_ns()
        futex.wake(self._bell_at)

    def _wait(self, ready: Callable[[], bool], awaited: Callable[[], list[int]]) -> None:
        others, look_at_s = -1, time.monotonic() + OTHERS_S
        while True:
            heard = int(self._board.bell[0])
            if ready():
                return
            control.heed()
            if time.monotonic() >= look_at_s:
                look_at_s, before = time.monotonic() + OTHERS_S, others
                others = self._progress_of(awaited())
                if before not in (-1, others):
                    control.progress()
            with control.waiting():
                futex.wait(self._bell_at, heard, LOOK_S)

    def _progress_of(self, members: list[int]) -> int:
        """Another number whenever one of them went on. Who hangs is judged by its own, and so is
        who has not come yet.
        """
        rows = self._rows[members]
        if (rows[:, JOINED] == 0).any():
            return time.monotonic_ns()
        return int(self._table[rows[:, CLIENT], PROGRESS].sum())

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
