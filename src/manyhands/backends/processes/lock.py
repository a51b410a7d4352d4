"""A lock that the kernel frees when its holder is killed."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from typing import Any

from manyhands.backends.processes import control, segment

LOOKS = 100  # about a microsecond each, before it sleeps: who holds it may be done by then


class Lock:
    """A file lock on nameless memory. Its first word says whether somebody is inside.

    A descriptor that was inherited or duplicated excludes nobody, so each process opens the
    memory anew; between threads of one process an ordinary lock decides first.
    """

    def __init__(
        self, memory: segment.Segment | None = None, look: Callable[[], None] | None = None
    ) -> None:
        self._memory, self._look = memory or _new_memory(), look
        self._inside = memoryview(self._memory)[:1]
        self._threads = threading.Lock()
        self._own = _opened(self._memory)

    def __enter__(self) -> bool:
        self._threads.acquire()
        try:
            self._take()
        except BaseException:
            self._threads.release()
            raise
        orderly = self._inside[0] == 0
        self._inside[0] = 1
        return orderly

    def _take(self) -> None:
        for _ in range(LOOKS):
            try:
                fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            return
        if self._look is not None:
            self._take_looking(self._look)
            return
        with control.waiting():
            fcntl.flock(self._own, fcntl.LOCK_EX)

    def _take_looking(self, look: Callable[[], None]) -> None:
        """Main's way: it alone can end a holder that hangs. A thread waits in line for it."""
        taker = _Taker(_opened(self._memory))
        taker.start()
        try:
            while not taker.taken.wait(control.LOOK_S):
                look()
        except BaseException:
            taker.abandon()
            raise
        os.close(self._own)
        self._own = taker.descriptor

    def __exit__(self, *error: object) -> None:
        self._inside[0] = 0
        fcntl.flock(self._own, fcntl.LOCK_UN)
        self._threads.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, (self._memory,)

    def __del__(self) -> None:
        if hasattr(self, "_own"):
            os.close(self._own)


class _Taker(threading.Thread):
    """Takes it by a descriptor of its own, and lets it go if nobody wants it any more."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self.descriptor, self._guard = descriptor, threading.Lock()
        self.taken, self._abandoned = threading.Event(), False

    def run(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        with self._guard:
            self.taken.set()
            if self._abandoned:
                os.close(self.descriptor)

    def abandon(self) -> None:
        with self._guard:
            self._abandoned = True
            if self.taken.is_set():
                os.close(self.descriptor)


def _opened(memory: segment.Segment) -> int:
    return os.open(f"/proc/self/fd/{memory.descriptor}", os.O_RDWR | os.O_CLOEXEC)


def _new_memory() -> segment.Segment:
    made = segment.sparse(segment.PAGE_BYTES)
    made.reserve(0, segment.PAGE_BYTES)
    return made
