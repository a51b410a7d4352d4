"""What goes wrong in a run, with its processes and environments: kept, counted and said."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from manyhands.crew import Crew
from manyhands.progress import Progress
from manyhands.rundir import RunDir
from manyhands.types import Backend, Failure, Fault

BREAKS_KEPT, BREAKS_SAID = 100, 3  # of environments, in faults.jsonl and on the display


class FaultLog:
    def __init__(
        self, folder: RunDir, crew: Crew, progress: Progress, say: Callable[[str], None]
    ) -> None:
        self._folder, self._crew, self._progress, self._say = folder, crew, progress, say

    def note(self, fault: Fault, *, say: bool = True) -> None:
        self._crew.note(fault)
        who = f"{fault.who.role} {fault.who.index} (pid {fault.who.pid})"
        self._folder.add_fault(f"{who} {fault.cause}", fault.action, detail=fault.detail)
        if say:
            self._say(f"{who} {fault.cause}; {fault.action}")

    def note_breaks(self) -> None:
        """Of an environment that breaks all the time the first hundred are kept, all counted."""
        progress = self._progress
        for fault in self._crew.take_breaks():
            progress.breaks += 1
            if progress.breaks <= BREAKS_KEPT:
                self.note(fault, say=progress.breaks <= BREAKS_SAID)
            if progress.breaks == BREAKS_SAID:
                self._say("more of these are counted, and kept in faults.jsonl")

    def note_last(self, backend: Backend) -> None:
        """Of workers that were told to leave; who was given up is known by now. Nothing here may
        keep a run from ending: another process may not be there to be started any more.
        """
        with suppress(Failure, OSError):
            for fault in backend.attend():
                self.note(fault)
