"""A worker and where it is between two turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from manyhands.types import Job, Keep, Rank

Condition = Callable[[], bool]


def always() -> bool:
    return True


class Player:
    """`Turns` writes its fields; only the player whose turn it is runs."""

    def __init__(self, rank: Rank, job: Job) -> None:
        self.rank, self.job = rank, job
        self.steps: Iterator[Keep | None] = iter(())
        self.keep: Keep | None = None
        self.ready: Condition = always
        self.at_yield, self.done = True, False
        self.one_more = False  # takes one more turn although workers are parked
        self.resting = False  # waits for workers that may be parked, and counts as parked itself
        self.error: BaseException | None = None
        self.semaphore = threading.Semaphore(0)
        self.thread: threading.Thread | None = None
