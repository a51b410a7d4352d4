"""A lock that the kernel frees when its holder is killed."""

from __future__ import annotations

import fcntl
import os
import threading
from typing import Any

from manyhands.backends.processes import control, segment

LOOKS = 100  # about a microsecond each, before it sleeps: who holds it may be done by then


class Lock:
    """A file lock on nameless memory. Its first word says whether somebody is inside.

    A descriptor that was inherited or duplicated excludes nobody, so each process opens the
    memory anew; between threads of one process an ordinary lock decides first.
    """

    def __init__(self, memory: segment.Segment | None = None) -> None:
        self._memory = memory or _new_memory()
        self._inside = memoryview(self._memory)[:1]
        self._threads = threading.Lock()
        self._own = os.open(f"/proc/self/fd/{self._memory.descriptor}", os.O_RDWR | os.O_CLOEXEC)

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
        with control.waiting():
            fcntl.flock(self._own, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        self._inside[0] = 0
        fcntl.flock(self._own, fcntl.LOCK_UN)
        self._threads.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, (self._memory,)

    def __del__(self) -> None:
        if hasattr(self, "_own"):
            os.close(self._own)


def _new_memory() -> segment.Segment:
    made = segment.sparse(segment.PAGE_BYTES)
    made.reserve(0, segment.PAGE_BYTES)
    return made
