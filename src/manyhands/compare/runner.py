"""Runs the cells of a comparison, one at a time, each in a process of its own.

A cell that has ended is not run again. One that was cut off, by a kill or by Ctrl-C, is run again
from its first step: a run that went on would have two clocks, and with many workers an empty
memory in its middle.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from manyhands.compare.display import Display
from manyhands.compare.folder import (
    FAILED,
    MEASURED,
    NOT_APPLICABLE,
    NOT_SOLVED,
    SOLVED,
    Folder,
    read_json,
)
from manyhands.compare.matrix import START_MINUTES, Cell
from manyhands.compare.study import SOLVE, Study
from manyhands.signals import StopRequests
from manyhands.types import BadRequest

LOOK_S = 0.2
START_S = 60 * START_MINUTES  # more than any start takes
GRACE_S = 60.0  # for a last checkpoint, once told to stop
REFUSED, STOPPED = BadRequest.code, 130


@dataclass
class Runner:
    study: Study
    folder: Folder
    display: Display
    stop: StopRequests
    within_s: float = 0.0  # no cell is begun after so long; 0: no end

    def run(self, cells: Sequence[Cell]) -> None:
        """Until all have ended, the time is over or somebody wants it to stop."""
        began = time.monotonic()
        waiting = [cell for cell in cells if self.folder.outcome(cell) is None]
        self.display.begin(waiting, total=len(cells))
        for cell in waiting:
            late = self.within_s and time.monotonic() - began > self.within_s
            if self.stop.asked or late:
                return
            self.display.started(cell)
            kept = self._kept(cell) or self._run(cell)
            if kept is not None:
                self.display.ended(cell, kept)

    def _kept(self, cell: Cell) -> dict[str, Any] | None:
        """A run that came to its end while nobody was left to note it."""
        status = read_json(self.folder.run(cell) / "status.json") or {}
        if self.study.metric != SOLVE or status.get("state") != "finished":
            return None
        return self._note(cell, 0, None)

    def _run(self, cell: Cell) -> dict[str, Any] | None:
        """None where it was interrupted."""
        self.folder.clear(cell)
        watch = Watch(self.study, self._start(cell))
        while (code := watch.process.poll()) is None:
            status = read_json(self.folder.run(cell) / "status.json") or {}
            self.display.look(status)
            watch.look(status, stop=self.stop.asked)
            time.sleep(LOOK_S)
        if self.stop.asked and not watch.measured:
            return None
        if watch.late:
            reason = "killed: it did not end in time" if code < 0 else "it did not end in time"
            return self.folder.keep(cell, FAILED, reason, exit=code)
        return self._note(cell, code, watch.window)

    def _start(self, cell: Cell) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "manyhands.compare.cell", str(os.getpid())]
        with self.folder.log(cell).open("wb") as log:
            return subprocess.Popen(
                [*command, *cell.words, "--out", str(self.folder.run(cell))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is ours to pass on
            )

    def _note(self, cell: Cell, code: int, window: list[dict[str, Any]] | None) -> dict[str, Any]:
        summary = read_json(self.folder.run(cell) / "summary.json")
        if self.study.metric != SOLVE and window and summary and code in (0, STOPPED):
            return self.folder.keep(cell, MEASURED, window=window)
        if self.study.metric == SOLVE and code == 0 and summary:
            outcome = SOLVED if summary["solved"] else NOT_SOLVED
            return self.folder.keep(cell, outcome)
        if code == REFUSED:
            return self.folder.keep(cell, NOT_APPLICABLE, self.folder.said(cell), exit=code)
        return self.folder.keep(cell, FAILED, self._reason(cell, code), exit=code)

    def _reason(self, cell: Cell, code: int) -> str:
        said = self.folder.said(cell)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}" + (f": {said}" if said else "")
        if code in (0, STOPPED):
            return "it ended before it could be measured"
        return f"{said or 'it said nothing'} (exit code {code})"


class Watch:
    """Looks on while a cell runs: measures it, and ends it when it is time."""

    def __init__(self, study: Study, process: subprocess.Popen[bytes]) -> None:
        self.process, self.late = process, False
        self.window: list[dict[str, Any]] | None = None
        self._study, self._first = study, dict[str, Any]()
        self._last_s = time.monotonic() + START_S + 60 * (study.minutes or 1e9) + GRACE_S
        self._told_s = 0.0

    @property
    def measured(self) -> bool:
        return self.window is not None

    def look(self, status: dict[str, Any], *, stop: bool) -> None:
        now = time.monotonic()
        if self._study.metric != SOLVE and self.window is None:
            self._measure(status)
        self.late = self.late or (now > self._last_s and not self._told_s)
        if (stop or self.late or self.measured) and not self._told_s:
            self._told_s = now
            self.process.send_signal(signal.SIGINT)
        if self._told_s and now > self._told_s + GRACE_S:
            self.late = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _measure(self, status: dict[str, Any]) -> None:
        """The window opens when everybody has stepped and something was learned."""
        if not _underway(status):
            return
        seen = {name: status[name] for name in ("wall_s", "agent_steps", "updates")}
        if not self._first:
            self._first = seen
        elif seen["wall_s"] - self._first["wall_s"] >= 60 * self._study.minutes:
            self.window = [self._first, seen]


def _underway(status: dict[str, Any]) -> bool:
    hands = [w for w in status.get("workers", ()) if w["role"] in ("worker", "actor")]
    return bool(status.get("updates")) and all(w["agent_steps"] for w in hands)
