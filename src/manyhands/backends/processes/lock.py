"""A lock that the kernel frees when its holder is killed."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from manyhands.backends.processes import control, segment

TRY_S = 0.0005
SPINS = 100  # tries of about a microsecond before it sleeps: the lock may be free by then


class Lock:
    """A file lock on nameless memory, whose first byte is 1 while the lock is held.

    Inherited or duplicated descriptors share a lock, so each process opens the memory itself.
    Threads of one process exclude each other by an ordinary lock first.
    """

    def __init__(
        self, memory: segment.Segment | None = None, look: Callable[[], None] | None = None
    ) -> None:
        self.memory, self._look = memory or _new_memory(), look
        self._inside = memoryview(self.memory)[:1]
        self._threads = threading.Lock()
        self._own = _opened(self.memory)
        _all.add(self)

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
        for _ in range(SPINS):
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
        """Main's way, since only main can kill a holder that hangs.

        A thread waits for the lock while main looks after its processes. Without a free
        descriptor for the thread, main polls.
        """
        try:
            taker = _Taker(_opened(self.memory))
        except OSError:
            self._try_looking(look)
            return
        taker.start()
        try:
            while not taker.taken.wait(control.LOOK_S):
                look()
        except BaseException:
            taker.abandon()
            raise
        os.close(self._own)
        self._own = taker.descriptor

    def _try_looking(self, look: Callable[[], None]) -> None:
        while True:
            try:
                fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                look()
                time.sleep(TRY_S)
            else:
                return

    def __exit__(self, *error: object) -> None:
        self._inside[0] = 0
        fcntl.flock(self._own, fcntl.LOCK_UN)
        self._threads.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, (self.memory,)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptor. The lock cannot be used here afterwards."""
        own = self.__dict__.pop("_own", None)
        if own is not None:
            os.close(own)


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forked() -> None:
    """In a process that an environment forked: closes its copies of the descriptors.

    While a copy is open, the kernel does not free the lock of a killed holder.
    """
    for lock in list(_all):
        lock.close()


os.register_at_fork(after_in_child=_forked)


class _Taker(threading.Thread):
    """Takes the lock with its own descriptor; frees it again if abandoned."""

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
