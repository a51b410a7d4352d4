"""What a worker's process does: turns, until there are none left or it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable

from manyhands.backends.processes.control import Desk, Stopped
from manyhands.types import Seat, Work


def drive(desk: Desk, incarnation: int, work: Work, index: int, role: str, nice: int) -> None:
    """Between two yields it is the worker's; at a yield it is its supervisor's."""
    os.nice(nice)
    if not desk.obey():  # before its first act: who is parked touches nothing
        return
    steps = work(Seat(index, incarnation, role))
    try:
        for _ in steps:
            desk.progress()
            if desk.told and not desk.obey():
                break
    except Stopped:  # while it waited for others that stop as well
        pass
    finally:
        close: Callable[[], None] = getattr(steps, "close", lambda: None)
        close()
