"""A small pool of threads that makes a few calls at the same time.

torch can split one operation among threads. Its threads then synchronise after every operation,
about a hundred times per update, and spin while they wait. Beside one other busy process that is
many times slower than a single thread. So torch uses one thread here, and a network splits whole
passes among these threads, which synchronise a few times per update and sleep while they wait.

A result depends on the number of threads, not on their timing, so a seed gives the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
WORTH_A_THREAD = 20e6  # multiply-adds; fewer take less time than waking a thread


class _Call(Generic[T]):
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # raised again by `result`
            self._error = error
        self._done.release()

    def wait(self) -> None:
        self._done.acquire()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]


class _Helper(threading.Thread):
    """A thread that makes calls until it is given None."""

    def __init__(self) -> None:
        super().__init__(name="manyhands pool", daemon=True)
        self.calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            call.run()

    def end(self) -> None:
        self.calls.put(None)
        self.join()


_helpers: list[_Helper] = []


def use(threads: int) -> None:
    """Sets the number of threads, the calling one included."""
    while len(_helpers) > max(0, threads - 1):
        _helpers.pop().end()
    while len(_helpers) < threads - 1:
        _helpers.append(_Helper())


def count() -> int:
    """How many calls can run at the same time."""
    return 1 + len(_helpers)


def each(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Results in order. At most `count` calls; the calling thread makes the first."""
    others = [_Call(call) for call in calls[1:]]
    for helper, call in zip(_helpers, others, strict=False):
        helper.calls.put(call)
    try:
        first = calls[0]()
    finally:
        for call in others:
            call.wait()
    return [first, *(call.result() for call in others)]


def shares(length: int, work: float) -> list[slice]:
    """Cuts `length` rows into shares, one for each thread that is worth waking.

    `work`: the multiplications and additions of all rows together.
    """
    worth = int(work / WORTH_A_THREAD)
    return cut(length, max(1, min(count(), length, worth)))


def cut(length: int, pieces: int) -> list[slice]:
    cuts = [length * piece // pieces for piece in range(pieces + 1)]
    return [slice(*cuts[piece : piece + 2]) for piece in range(pieces)]
