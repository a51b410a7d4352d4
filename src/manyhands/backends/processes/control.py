"""A row of shared words for every process: its command, its state, its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from manyhands.backends.processes import futex, segment
from manyhands.types import Array

MOST_CLIENTS = 256  # processes of one backend, main included
MAIN = 0  # main's client number
WORDS = 8  # per row: one cache line

# Only the parent writes ENDS (incarnations that ended), PARKS (orders to park) and SAVES (orders to
# save). The process answers in PARKED_FOR and SAVED.
COMMAND, STATE, PROGRESS, ENDS, PARKS, PARKED_FOR, SAVES, SAVED = range(8)
# Commands; only the parent writes them. STEP: take one turn, or end the one begun, then park.
GO, PARK, STOP, STEP = range(4)
# States; only the process itself writes them. RESTING: parked inside a turn, in a wait for others.
BUSY, PARKED, WAITING, DONE, RESTING = range(5)
LOOK_S = 0.02  # how often main checks its processes while it waits
NAP_S = 0.5  # longest sleep: the process that would wake this one may have been killed


def new_table() -> Array:
    return segment.allocate((MOST_CLIENTS, WORDS), "int64")


def reset(table: Array, client: int) -> None:
    """Before a new incarnation starts. The command stays."""
    table[client, STATE] = BUSY


def tell(table: Array, client: int, command: int) -> None:
    table[client, PARKS] += command in (PARK, STEP)
    table[client, COMMAND] = command
    wake(table, client)


def wake(table: Array, client: int) -> None:
    futex.wake(segment.address_of(table[client]) + 8 * COMMAND)


def tell_to_save(table: Array, client: int) -> None:
    """For a process that is parked."""
    table[client, SAVES] += 1
    wake(table, client)


def has_saved(table: Array, client: int) -> bool:
    return bool(table[client, SAVED] == table[client, SAVES])


def is_resting(table: Array, client: int) -> bool:
    return bool(table[client, STATE] == RESTING)


def is_waiting(table: Array, client: int) -> bool:
    """For another process, parked there or not."""
    return bool(table[client, STATE] in (WAITING, RESTING))


def is_done(table: Array, client: int) -> bool:
    """Whether its work is finished. An exit code does not show that."""
    return bool(table[client, STATE] == DONE)


def is_parked(table: Array, client: int) -> bool:
    """For the newest park command: a process that just left an older one still looks parked."""
    row = table[client]
    return bool(row[STATE] in (PARKED, RESTING) and row[PARKED_FOR] == row[PARKS])


def _nothing() -> None:
    """A process that has no state to save."""


class Stopped(BaseException):
    """Ends a worker that is told to stop while it waits. No code should catch it."""


class ControlRow:
    """The row of this process."""

    def __init__(self, table: Array, client: int) -> None:
        self.incarnation = 0
        self._row = table[client].data  # a memoryview's items are read faster than NumPy's
        self._address = segment.address_of(table[client]) + 8 * COMMAND
        self._stepped_for = self._row[PARKS]  # the order that the last extra turn answered
        self._save: Callable[[], None] = _nothing

    def save_with(self, save: Callable[[], None]) -> None:
        """What to call when told to save."""
        self._save = save

    def progress(self) -> None:
        self._row[PROGRESS] += 1

    @property
    def has_command(self) -> bool:
        return bool(self._row[COMMAND] != GO)

    def obey(self, *, in_turn: bool = False) -> bool:
        """Waits while told to park; False when told to stop. `in_turn`: in a wait for others."""
        row = self._row
        while True:
            parks, command = row[PARKS], row[COMMAND]  # in this order: a new one may come
            if command == STEP and (in_turn or self._stepped_for != parks):
                self._stepped_for = parks
                break
            if command not in (PARK, STEP):
                break
            row[PARKED_FOR] = parks
            row[STATE] = RESTING if in_turn else PARKED
            self._save_if_told(in_turn=in_turn)
            futex.wait(self._address, command, NAP_S)
        row[STATE] = BUSY
        return bool(command != STOP)

    def _save_if_told(self, *, in_turn: bool) -> None:
        saves = self._row[SAVES]
        if self._row[SAVED] != saves:
            if not in_turn:
                self._save()
            self._row[SAVED] = saves

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


def own_incarnation() -> int:
    return _here[0].incarnation if _here else 0


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
    if _here and _here[0].has_command and not _here[0].obey(in_turn=True):
        raise Stopped
