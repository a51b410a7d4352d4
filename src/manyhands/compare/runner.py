"""Runs the cells of a comparison, each in its own process.

One runs at a time, unless the study says how many threads may compute (`at_once`). A cell that has
ended is not run again. A cell that was killed or interrupted is run again from its first step: a
resumed run would have two clocks, and could not be compared with the others.
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
)
from manyhands.compare.matrix import START_MINUTES, Cell
from manyhands.compare.study import SOLVE, Study
from manyhands.runs.signals import StopRequests
from manyhands.types import BadRequest

LOOK_S = 0.2
START_S = 60 * START_MINUTES  # more than any start takes
GRACE_S = 60.0  # time for a last checkpoint after SIGINT
REFUSED, STOPPED = BadRequest.code, 130


@dataclass
class Runner:
    study: Study
    folder: Folder
    display: Display
    stop: StopRequests
    within_s: float = 0.0  # start no cell after this time; 0: no limit

    def run(self, cells: Sequence[Cell]) -> None:
        """Runs until all have ended, the time is over, or a signal stops it."""
        began = time.monotonic()
        waiting = [cell for cell in cells if self.folder.outcome(cell) is None]
        running: list[Watch] = []
        self.display.begin(waiting, total=len(cells))
        while True:
            late = bool(self.within_s) and time.monotonic() - began > self.within_s
            if not self.stop.asked and not late:
                self._start_next(waiting, running)
            if not running:
                return
            time.sleep(LOOK_S)
            for watch in list(running):
                if self._ended(watch):
                    running.remove(watch)

    def _start_next(self, waiting: list[Cell], running: list[Watch]) -> None:
        """Starts those of the waiting cells, in order, that there is room for."""
        for cell in list(waiting):
            busy = sum(watch.cell.threads for watch in running)
            if running and busy + cell.threads > self.study.at_once:
                continue
            waiting.remove(cell)
            self.display.started(cell)
            if outcome := self._finished_unrecorded(cell):
                self.display.ended(cell, outcome)
            else:
                self.folder.clear(cell)
                running.append(Watch(self.study, cell, self._start(cell)))

    def _finished_unrecorded(self, cell: Cell) -> dict[str, Any] | None:
        """Records a run that finished after an earlier comparison was killed."""
        status = self.folder.run_json(cell, "status.json")
        if self.study.metric != SOLVE or status.get("state") != "finished":
            return None
        return self._record(cell, 0, None)

    def _ended(self, watch: Watch) -> bool:
        code = watch.process.poll()
        if code is None:
            status = self.folder.run_json(watch.cell, "status.json")
            self.display.look(watch.cell, status)
            watch.look(status, stop=self.stop.asked)
            return False
        outcome = self._outcome(watch, code)
        if outcome is not None:
            self.display.ended(watch.cell, outcome)
        return True

    def _outcome(self, watch: Watch, code: int) -> dict[str, Any] | None:
        """None if it was interrupted."""
        if self.stop.asked and not watch.measured:
            return None
        if watch.late:
            reason = "killed: it did not end in time" if code < 0 else "it did not end in time"
            return self.folder.write_outcome(watch.cell, FAILED, reason, exit=code)
        return self._record(watch.cell, code, watch.window)

    def _start(self, cell: Cell) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "manyhands.cli.cell", str(os.getpid())]
        with self.folder.log(cell) as log:
            return subprocess.Popen(
                [*command, *cell.words, "--out", str(self.folder.run(cell))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C reaches only us; we pass it on
            )

    def _record(self, cell: Cell, code: int, window: list[dict[str, Any]] | None) -> dict[str, Any]:
        summary = self.folder.run_json(cell, "summary.json")
        if self.study.metric != SOLVE and window and summary and code in (0, STOPPED):
            return self.folder.write_outcome(cell, MEASURED, window=window)
        if self.study.metric == SOLVE and code == 0 and summary:
            outcome = SOLVED if summary.get("solved") else NOT_SOLVED
            return self.folder.write_outcome(cell, outcome)
        if code == REFUSED:
            message = self.folder.last_message(cell)
            return self.folder.write_outcome(cell, NOT_APPLICABLE, message, exit=code)
        return self.folder.write_outcome(cell, FAILED, self._reason(cell, code), exit=code)

    def _reason(self, cell: Cell, code: int) -> str:
        message = self.folder.last_message(cell)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}" + (f": {message}" if message else "")
        if code in (0, STOPPED):
            return "it ended before it could be measured"
        return f"{message or 'no message'} (exit code {code})"


class Watch:
    """Watches a running cell: measures its throughput and stops it in time."""

    def __init__(self, study: Study, cell: Cell, process: subprocess.Popen[bytes]) -> None:
        self.cell, self.process, self.late = cell, process, False
        self.window: list[dict[str, Any]] | None = None
        self._study, self._first = study, dict[str, Any]()
        self._deadline_s = time.monotonic() + START_S + 60 * (study.minutes or 1e9) + GRACE_S
        self._signalled_s = 0.0

    @property
    def measured(self) -> bool:
        return self.window is not None

    def look(self, status: dict[str, Any], *, stop: bool) -> None:
        now = time.monotonic()
        if self._study.metric != SOLVE and self.window is None:
            self._measure(status)
        self.late = self.late or (now > self._deadline_s and not self._signalled_s)
        if (stop or self.late or self.measured) and not self._signalled_s:
            self._signalled_s = now
            self.process.send_signal(signal.SIGINT)
        if self._signalled_s and now > self._signalled_s + GRACE_S:
            self.late = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _measure(self, status: dict[str, Any]) -> None:
        """Measures from when every worker has stepped and an update was made."""
        if not _underway(status):
            return
        seen = {name: status[name] for name in ("wall_s", "agent_steps", "updates")}
        if not self._first:
            self._first = seen
        elif seen["wall_s"] - self._first["wall_s"] >= 60 * self._study.minutes:
            self.window = [self._first, seen]


def _underway(status: dict[str, Any]) -> bool:
    workers = [w for w in status.get("workers", ()) if w["role"] in ("worker", "actor")]
    return bool(status.get("updates")) and all(w["agent_steps"] for w in workers)
