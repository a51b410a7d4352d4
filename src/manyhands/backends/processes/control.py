"""A row of shared words for every process: its command, its state, its progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from manyhands.backends.processes import futex, segment
from manyhands.types import Array

MOST_CLIENTS = 256  # processes of one backend, main included
MAIN = 0  # main's client number
WORDS = 8  # per row: one cache line

# ENDS: incarnations that ended; PARKS: park commands given. Only the parent writes these two.
COMMAND, STATE, PROGRESS, ENDS, PARKS, PARKED_FOR = range(6)
GO, PARK, STOP = range(3)  # commands; only the parent writes them
BUSY, PARKED, WAITING, DONE = range(4)  # states; only the process itself writes them
LOOK_S = 0.02  # how often main checks its processes while it waits
NAP_S = 0.5  # longest sleep: the process that would wake this one may have been killed


def new_table() -> Array:
    return segment.allocate((MOST_CLIENTS, WORDS), "int64")


def reset(table: Array, client: int) -> None:
    """Before a new incarnation starts. The command stays."""
    table[client, STATE] = BUSY


def tell(table: Array, client: int, command: int) -> None:
    table[client, PARKS] += command == PARK
    table[client, COMMAND] = command
    futex.wake(segment.address_of(table[client]) + 8 * COMMAND)


def is_done(table: Array, client: int) -> bool:
    """Whether its work is finished; an exit code does not say."""
    return bool(table[client, STATE] == DONE)


def is_parked(table: Array, client: int) -> bool:
    """For the newest park command: a process that just left an older one still looks parked."""
    row = table[client]
    return bool(row[STATE] == PARKED and row[PARKED_FOR] == row[PARKS])


class Stopped(BaseException):
    """Ends a worker that is told to stop while it waits. No code should catch it."""


class ControlRow:
    """The row of this process."""

    def __init__(self, table: Array, client: int) -> None:
        self._row = table[client].data  # a memoryview's items are read faster than NumPy's
        self._address = segment.address_of(table[client]) + 8 * COMMAND

    def progress(self) -> None:
        self._row[PROGRESS] += 1

    @property
    def has_command(self) -> bool:
        return bool(self._row[COMMAND] != GO)

    def obey(self) -> bool:
        """Waits while told to park; False when told to stop."""
        parks = self._row[PARKS]  # read before the command: a new one may come in between
        while (command := self._row[COMMAND]) == PARK:
            self._row[PARKED_FOR] = parks
            self._row[STATE] = PARKED
            futex.wait(self._address, command, NAP_S)
            parks = self._row[PARKS]
        self._row[STATE] = BUSY
        return bool(command != STOP)

    def done(self) -> None:
        self._row[STATE] = DONE

    @contextmanager
    def in_state(self, state: int) -> Iterator[None]:
        """Sets the state within the block."""
        before = self._row[STATE]
        self._row[STATE] = state
        try:
            yield
        finally:
            self._row[STATE] = before


_here: list[ControlRow] = []  # the row of this process; main has none


def set_own_row(row: ControlRow) -> None:
    _here[:] = [row]


@contextmanager
def waiting() -> Iterator[None]:
    """Around every wait for another process, which may be the one that hangs."""
    if not _here:
        yield
        return
    with _here[0].in_state(WAITING):
        yield


def progress() -> None:
    """Called in a wait for processes that make progress: this one does not hang."""
    if _here:
        _here[0].progress()


def obey_command() -> None:
    """Called in a wait that other processes end: parks or stops here when told to."""
    if _here and _here[0].has_command and not _here[0].obey():
        raise Stopped
