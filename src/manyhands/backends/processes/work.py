"""What a worker's process does: its job's steps, until they end or it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable

from manyhands.backends.processes.control import ControlRow, Stopped
from manyhands.backends.processes.outbox import Outbox
from manyhands.types import Keep, Rank, Work


def drive(
    row: ControlRow,
    incarnation: int,
    work: Work,
    index: int,
    role: str,
    nice: int,
    outbox: Outbox,
) -> None:
    """Runs the job. At every yield it obeys the supervisor's command."""
    os.nice(nice)
    outbox.clear()
    if not row.obey():  # before the first step: a parked worker changes nothing
        return
    newest: list[Keep | None] = [None]
    row.save_with(lambda: _save(newest[0], outbox))
    steps = work(Rank(index, incarnation, role))
    try:
        for newest[0] in steps:
            row.progress()
            if row.has_command and not row.obey():
                break
        else:
            _save(newest[0], outbox)  # its work is done: main may want its state later
    except Stopped:  # it was told to stop while it waited for others
        pass
    finally:
        close: Callable[[], None] = getattr(steps, "close", lambda: None)
        close()


def _save(keep: Keep | None, outbox: Outbox) -> None:
    if keep is not None:
        outbox.put(keep())
