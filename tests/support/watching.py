"""Waiting for what the processes of a backend do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from manyhands.types import Fault

LONG_S = 60.0
Running = Iterator[Fault | None]


def look_until(running: Running, condition: Callable[[], bool]) -> list[Fault]:
    """Collect faults until the condition holds. Generous: the machine may be busy."""
    faults: list[Fault] = []
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, faults
        faults += [fault for fault in [next(running)] if fault is not None]
    return faults
