"""A row of shared words for every process: what it is told, where it is, how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from manyhands.backends.processes import futex, segment
from manyhands.types import Array

MOST_CLIENTS = 256  # processes of one backend, main included
MAIN = 0  # main's number as a client
WORDS = 8  # a row; one cache line

# ends: of those who sat here; parks: how often it was told to. Only the parent writes these two.
COMMAND, STATE, PROGRESS, ENDS, PARKS, PARKED_FOR = range(6)
GO, PARK, STOP = range(3)  # commands; only the parent writes them
BUSY, PARKED, WAITING = range(3)  # states; only the process itself writes them
LOOK_S = 0.02  # main looks after its processes so often while it waits
NAP_S = 0.5  # whoever sleeps looks again then: who was to wake it may have been killed before


def new_table() -> Array:
    return segment.allocate((MOST_CLIENTS, WORDS), "int64")


def reset(table: Array, client: int) -> None:
    """Before another incarnation begins; its command stands."""
    table[client, STATE] = BUSY


def tell(table: Array, client: int, command: int) -> None:
    table[client, PARKS] += command == PARK
    table[client, COMMAND] = command
    futex.wake(segment.address_of(table[client]) + 8 * COMMAND)


def is_parked(table: Array, client: int) -> bool:
    """For the newest time it was told to: who is just leaving may still look like it."""
    row = table[client]
    return bool(row[STATE] == PARKED and row[PARKED_FOR] == row[PARKS])


class Stopped(BaseException):
    """Ends a worker that is told to stop in the middle of a wait; nobody is to catch it."""


class Desk:
    """A process' own row."""

    def __init__(self, table: Array, client: int) -> None:
        self._row = table[client].data  # a memoryview's items are read faster than NumPy's
        self._address = segment.address_of(table[client]) + 8 * COMMAND

    def progress(self) -> None:
        self._row[PROGRESS] += 1

    @property
    def told(self) -> bool:
        return bool(self._row[COMMAND] != GO)

    def obey(self) -> bool:
        """Waits while told to park; False when told to stop."""
        parks = self._row[PARKS]  # always before the command: it may be told again in between
        while (command := self._row[COMMAND]) == PARK:
            self._row[PARKED_FOR] = parks
            self._row[STATE] = PARKED
            futex.wait(self._address, command, NAP_S)
            parks = self._row[PARKS]
        self._row[STATE] = BUSY
        return bool(command != STOP)

    @contextmanager
    def marked(self, state: int) -> Iterator[None]:
        """While it waits for somebody who may be the one that hangs."""
        before = self._row[STATE]
        self._row[STATE] = state
        try:
            yield
        finally:
            self._row[STATE] = before


_here: list[Desk] = []  # of this process, if it has one


def sit_down(desk: Desk) -> None:
    _here[:] = [desk]


@contextmanager
def waiting() -> Iterator[None]:
    """Around every wait for another process."""
    if not _here:
        yield
        return
    with _here[0].marked(WAITING):
        yield


def progress() -> None:
    """In a wait for others that go on: who waits for them does not hang."""
    if _here:
        _here[0].progress()


def heed() -> None:
    """In a wait that only ends when others go on: parks there when told to, or leaves."""
    if _here and _here[0].told and not _here[0].obey():
        raise Stopped
