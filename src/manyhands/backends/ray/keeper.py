"""The keeper: the thread of a node runner that starts processes and looks after them.

The kernel kills a process when the thread that started it ends. So one thread starts all, and lives
as long as the node runner.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from manyhands.backends.processes.control import LOOK_S
from manyhands.backends.processes.launched import Launched
from manyhands.types import Failure, Fault, ProcessInfo


class News(NamedTuple):
    """What main learns of the processes of a node."""

    faults: list[Fault]  # those that main has not seen yet
    faults_so_far: int
    processes: list[ProcessInfo]
    finished: frozenset[int]  # ranks
    failure: tuple[str, str] | None  # what cannot go well, and a remedy


class Keeper(threading.Thread):
    def __init__(self, name: str, launched: Launched, *, is_near: bool) -> None:
        super().__init__(name="keeper", daemon=True)
        self._node, self._is_near, self._launched = name, is_near, launched
        self._orders: queue.SimpleQueue[tuple[Callable[[Launched], Any], Future[Any]]]
        self._orders = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._launched.supervisor.bell = self._bell
        self._changed = threading.Condition()
        self._faults: list[Fault] = []
        self._processes: list[ProcessInfo] = []
        self._finished: frozenset[int] = frozenset()
        self._failure: tuple[str, str] | None = None
        self._version = 0

    def order(self, what: Callable[[Launched], Any]) -> Any:
        """Done by the keeper's thread; returns its result."""
        done: Future[Any] = Future()
        self._orders.put((what, done))
        os.eventfd_write(self._bell, 1)
        return done.result()

    def run(self) -> None:
        raylet = os.getppid()
        self._launched.begin()
        while True:
            if os.getppid() != raylet:
                os._exit(1)  # the node is gone: Ray would end this process some seconds later
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
            while not self._orders.empty():
                self._obey(*self._orders.get())
            self._launched.supervisor.look(LOOK_S)
            self._note()

    def _obey(self, what: Callable[[Launched], Any], done: Future[Any]) -> None:
        try:
            result = what(self._launched)
        except BaseException as error:
            self._note()
            done.set_exception(error)
        else:
            self._note()
            done.set_result(result)

    def _note(self) -> None:
        """Records what main is to learn, and wakes the call that waits for it."""
        launched = self._launched
        faults = [replace(f, process=self._named(f.process)) for f in launched.take_faults()]
        processes = [self._named(info) for info in launched.process_table()]
        finished = frozenset(p.index for p in launched.workers if p.finished)
        failure = _words(launched.supervisor.hopeless)
        now = (processes, finished, failure)
        with self._changed:
            if not faults and now == (self._processes, self._finished, self._failure):
                return
            self._faults += faults
            self._processes, self._finished, self._failure = now
            self._version += 1
            self._changed.notify_all()

    def _named(self, process: ProcessInfo) -> ProcessInfo:
        return replace(process, node=self._node, is_near=self._is_near)

    def news(self, seen: int) -> News:
        with self._changed:
            faults, finished = self._faults[seen:], self._finished
            return News(faults, len(self._faults), self._processes, finished, self._failure)

    def wait_for_news(self, version: int, timeout_s: float) -> int:
        """Until there is something that came after this version; returns the version now."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, timeout_s)
            return self._version


def _words(failure: Failure | None) -> tuple[str, str] | None:
    return None if failure is None else (failure.what, failure.remedy)
