"""Records, counts and shows what goes wrong in a run: processes, environments, full disks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from manyhands.runs.progress import Progress
from manyhands.runs.rundir import RunDir
from manyhands.runs.workers import Workers
from manyhands.types import Backend, Failure, Fault, ProcessInfo, Refusal
from manyhands.types.errors import text_of

BREAKS_KEPT, BREAKS_SHOWN = 100, 3  # failed environments in faults.jsonl and on the display


class FaultLog:
    def __init__(
        self, folder: RunDir, workers: Workers, progress: Progress, say: Callable[[str], None]
    ) -> None:
        self._folder, self._workers, self._progress, self._say = folder, workers, progress, say
        self._unwritten = dict[str, str]()  # which file failed at its last write -> why

    def attempt(self, what: str, save: Callable[[], None]) -> bool:
        """Returns whether it was saved. A full disk must not end a run; callers try again later.

        The failure is shown once, and its end too.
        """
        try:
            save()
        except (Failure, OSError) as error:
            self._note_unwritten(what, error)
            return False
        if self._unwritten.pop(what, None) is not None and not self._unwritten:
            self._say("the run's files can be written again")
        return True

    def _note_unwritten(self, what: str, error: Failure | OSError) -> None:
        text, reason = sentence(error), reason_of(error)
        if what not in self._unwritten:
            self._folder.add_fault(text, "training continues; tried again later")
        if reason not in self._unwritten.values():
            self._say(f"{text}; training continues and tries again")
        self._unwritten[what] = reason

    def note(self, fault: Fault, *, say: bool = True) -> None:
        self._workers.processes.note(fault)
        process = name_of(fault.process)
        self._folder.add_fault(f"{process} {fault.cause}", fault.action, detail=fault.detail)
        if say:
            self._say(f"{process} {fault.cause}; {fault.action}")

    def note_breaks(self) -> None:
        """Counts every environment that failed. Records the first hundred and shows three."""
        progress = self._progress
        for fault in self._workers.take_breaks():
            progress.breaks += 1
            if progress.breaks <= BREAKS_KEPT:
                self.note(fault, say=progress.breaks <= BREAKS_SHOWN)
            if progress.breaks == BREAKS_SHOWN:
                self._say("more of these are counted, and recorded in faults.jsonl")

    def note_last(self, backend: Backend) -> None:
        """Records the faults of workers while they leave. Nothing here may keep a run from ending.

        It can fail, for example when no new process can be started any more.
        """
        with suppress(Failure, OSError):
            for fault in backend.attend():
                self.note(fault)


def name_of(process: ProcessInfo) -> str:
    """worker 1 (pid 4711), or with its node: actor 3 (pid 4711, node 10.0.0.7)"""
    pid = [f"pid {process.pid}"] if process.pid or not process.node else []
    node = [f"node {process.node}"] if process.node else []
    return f"{process.role} {process.index} ({', '.join([*pid, *node])})"


def sentence(error: BaseException) -> str:
    return error.what if isinstance(error, Refusal) else f"{type(error).__name__}: {text_of(error)}"


def reason_of(error: BaseException) -> str:
    """The operating system's reason. It is the same for all files of a full disk."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return (isinstance(cause, OSError) and cause.strerror) or sentence(error)
