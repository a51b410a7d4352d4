"""The most memory that all processes of a run took together."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter

PERIOD_S = 10.0


class PeakMemory:
    """Counts PSS (proportional set size): each process counts its share of shared pages."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._next_s = 0.0

    def begin(self) -> None:
        self._next_s = perf_counter()

    def sample(self, pids: Iterable[int]) -> None:
        """Measures main and the processes ``pids``, every ten seconds at most."""
        if perf_counter() < self._next_s and self.peak_mb:
            return
        import psutil

        total = 0
        for pid in {os.getpid(), *pids}:
            with suppress(psutil.Error, OSError):  # no such process, or no free file descriptor
                info = psutil.Process(pid).memory_full_info()
                total += getattr(info, "pss", info.uss)
        self.peak_mb = max(self.peak_mb, total / 1e6)
        self._next_s = perf_counter() + PERIOD_S
