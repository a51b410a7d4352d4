"""Counters in shared memory: one row per rank, which only that rank writes and main reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyhands.roles.actor import Actor
from manyhands.roles.learner import Learner
from manyhands.roles.stopwatch import PARTS_OF_TIME, Stopwatch
from manyhands.types import Channel, Rank, Table

NUMBERS = ("agent_steps", "updates", "nonfinite", "drawn", "torn", "filled", "capacity")
FIELDS = (*NUMBERS, *PARTS_OF_TIME, "imagined")
STEPS, UPDATES, NONFINITE, DRAWN, TORN, FILLED, CAPACITY = range(len(NUMBERS))
SPENT = slice(len(NUMBERS), -1)  # seconds by part
IMAGINED = len(FIELDS) - 1
PERIOD_S = 0.1  # of counters that are only displayed
# Limits of a message about a broken environment: encoding may double each byte.
CAUSE_BYTES, DETAIL_BYTES, MOST_LANES = 300, 1500, 16


class Row:
    """The counters of one rank, over all its incarnations."""

    def __init__(self, counters: Table, channel: Channel, rank: Rank) -> None:
        self._row, self._rank, self._channel = counters.row(rank.index), rank, channel
        self._before = self._row.copy()
        self._steps_before = int(self._before[STEPS])
        self._learned = 0  # updates and skipped gradients, counted already
        self._next_s = 0.0

    def resumed(self, actor: Actor | None = None, learner: Learner | None = None) -> None:
        """These were restored with the counts of this row, which must not count twice."""
        if actor is not None:
            self._steps_before -= actor.agent_steps
        if learner is not None:
            self._before[UPDATES] -= learner.updates
            self._before[NONFINITE] -= learner.nonfinite_skipped
            self._learned = learner.updates + learner.nonfinite_skipped

    @property
    def steps(self) -> int:
        return int(self._row[STEPS])

    def count_actor(self, actor: Actor) -> None:
        self._row[STEPS] = self._steps_before + actor.agent_steps
        for episode in actor.scores.take_fresh():
            self._channel.put({"episode": [*episode[:4], dict(episode.told)]})
        for broken in actor.take_breaks():
            rank = self._rank
            me = (rank.role, rank.index, rank.incarnation, os.getpid())
            first, last = slice(CAUSE_BYTES), slice(-DETAIL_BYTES, None)
            cause, detail = short(broken.cause, first), short(broken.detail, last)
            message = broken.lanes[:MOST_LANES], cause, detail
            self._channel.put({"break": message, "process": me})

    def count_gradients(self, learner: Learner) -> None:
        """Counts each gradient before it is pushed. So every applied gradient is counted, even if
        the learner is killed.
        """
        row, before = self._row, self._before

        def count() -> None:
            row[UPDATES] = before[UPDATES] + learner.updates

        learner.on_gradient = count

    def count_learner(self, learner: Learner) -> None:
        if learner.updates + learner.nonfinite_skipped == self._learned:
            return
        self._learned = learner.updates + learner.nonfinite_skipped
        self._row[UPDATES] = self._before[UPDATES] + learner.updates
        self._row[NONFINITE] = self._before[NONFINITE] + learner.nonfinite_skipped
        self._row[TORN] = self._before[TORN] + learner.memory.torn_rows
        self._row[IMAGINED] = self._before[IMAGINED] + learner.algorithm.imagined_steps
        newest = learner.periodic_diagnostics()
        if newest:
            self._channel.put({"diagnostics": dict(newest)})

    @property
    def updates(self) -> int:
        return int(self._row[UPDATES])

    @property
    def drawn(self) -> int:
        return int(self._row[DRAWN])

    def set_drawn(self, number: int) -> None:
        """Batches drawn and skipped by all incarnations."""
        self._row[DRAWN] = number

    def flush_periodically(self, stopwatch: Stopwatch, record: Any = None) -> None:
        """Writes the time split and the memory's fill, not at every turn."""
        if stopwatch.now_s >= self._next_s:
            self._next_s = stopwatch.now_s + PERIOD_S
            self._flush(stopwatch, record)

    @contextmanager
    def flushed(self, stopwatch: Stopwatch, record: Any = None) -> Iterator[None]:
        """Flushes the counters on exit."""
        try:
            yield
        finally:
            self._flush(stopwatch, record)

    def _flush(self, stopwatch: Stopwatch, record: Any) -> None:
        filled = (record.filled, record.capacity) if record is not None else (0, 0)
        self._row[FILLED : CAPACITY + 1] = filled
        self._row[SPENT] = self._before[SPENT] + list(stopwatch.seconds.values())


def short(text: str, kept: slice) -> str:
    """These bytes of the text, without control characters for a terminal."""
    plain = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
    return plain.encode(errors="replace")[kept].decode(errors="ignore")
