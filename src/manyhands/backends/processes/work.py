"""What a worker's process does: its job's steps, until they end or it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable

from manyhands.backends.processes.control import ControlRow, Stopped
from manyhands.types import Rank, Work


def drive(row: ControlRow, incarnation: int, work: Work, index: int, role: str, nice: int) -> None:
    """Runs the job. At every yield it obeys the supervisor's command."""
    os.nice(nice)
    if not row.obey():  # before the first step: a parked worker changes nothing
        return
    steps = work(Rank(index, incarnation, role))
    try:
        for _ in steps:
            row.progress()
            if row.has_command and not row.obey():
                break
    except Stopped:  # it was told to stop while it waited for others
        pass
    finally:
        close: Callable[[], None] = getattr(steps, "close", lambda: None)
        close()
