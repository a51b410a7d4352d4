"""What everybody in a team counts, where main sees it: a row of numbers a seat, one writer each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyhands.actor import Actor
from manyhands.learner import Learner
from manyhands.metrics import PARTS_OF_TIME, Laps
from manyhands.types import Array, Channel, Seat

NUMBERS = ("agent_steps", "updates", "nonfinite", "drawn", "torn", "filled", "capacity")
FIELDS = (*NUMBERS, *PARTS_OF_TIME)
STEPS, UPDATES, NONFINITE, DRAWN, TORN, FILLED, CAPACITY = range(len(NUMBERS))
SPENT = slice(len(NUMBERS), None)  # seconds, by part
PERIOD_S = 0.1  # of what is only looked at
# Of a break that is told: every byte may be two in a message.
CAUSE_BYTES, DETAIL_BYTES, MOST_LANES = 300, 1500, 16


class Row:
    """A seat's counters, those of who sat there before included."""

    def __init__(self, counters: Array, episodes: Channel, seat: Seat) -> None:
        self._row, self._seat, self._episodes = counters[seat.index], seat, episodes
        self._before = self._row.copy()
        self._steps_before = int(self._before[STEPS])
        self._learned = 0  # updates and what was skipped, told already
        self._next_s = 0.0

    @property
    def steps(self) -> int:
        return int(self._row[STEPS])

    def acted(self, actor: Actor) -> None:
        self._row[STEPS] = self._steps_before + actor.agent_steps
        for episode in actor.scores.take_fresh():
            self._episodes.put({"episode": list(episode)})
        for found in actor.take_breaks():
            seat = self._seat
            me = (seat.role, seat.index, seat.incarnation, os.getpid())
            first, last = slice(CAUSE_BYTES), slice(-DETAIL_BYTES, None)
            told = found.lanes[:MOST_LANES], short(found.cause, first), short(found.detail, last)
            self._episodes.put({"break": told, "who": me})

    def learned(self, learner: Learner) -> None:
        if learner.updates + learner.nonfinite_skipped == self._learned:
            return
        self._learned = learner.updates + learner.nonfinite_skipped
        kept: Any = learner.memory
        own = (learner.updates, learner.nonfinite_skipped)
        self._row[UPDATES : NONFINITE + 1] = self._before[UPDATES : NONFINITE + 1] + own
        self._row[TORN] = self._before[TORN] + getattr(kept, "torn_rows", 0)
        newest = learner.diagnostics_now_and_then()
        if newest:
            self._episodes.put({"diagnostics": dict(newest)})

    @property
    def drawn(self) -> int:
        return int(self._row[DRAWN])

    def drew(self, number: int) -> None:
        """Batches that were drawn, and those forgiven: of all who sat here."""
        self._row[DRAWN] = number

    def now_and_then(self, laps: Laps, record: Any = None) -> None:
        """Where the time went and how full the memory is: not at every turn, they are many."""
        if laps.now_s >= self._next_s:
            self._next_s = laps.now_s + PERIOD_S
            self._tell(laps, record)

    @contextmanager
    def kept(self, laps: Laps, record: Any = None) -> Iterator[None]:
        """What was not told yet is told when who sits here leaves."""
        try:
            yield
        finally:
            self._tell(laps, record)

    def _tell(self, laps: Laps, record: Any) -> None:
        filled = getattr(record, "filled", 0), getattr(record, "capacity", 0)
        self._row[FILLED : CAPACITY + 1] = filled
        self._row[SPENT] = self._before[SPENT] + list(laps.seconds.values())


def short(text: str, kept: slice) -> str:
    """These bytes of it, without what a terminal could take for an order."""
    plain = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
    return plain.encode(errors="replace")[kept].decode(errors="ignore")
