"""A comparison's folder: the runs, their outcomes and their logs.

``cells/NAME/``         a run's folder
``outcomes/NAME.json``  how it ended. Written last and atomically: with it the cell has ended
``logs/NAME.txt``       what it printed to standard error
``sittings.jsonl``      a line for each invocation of the command: machine, versions, time
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from manyhands.compare.matrix import Cell
from manyhands.config import runfiles
from manyhands.runs import folder_lock, provenance, rundir
from manyhands.types import BadRequest, Failure, machine

SOLVED, NOT_SOLVED, MEASURED = "solved", "not solved", "measured"
FAILED, NOT_APPLICABLE, NOT_RUN = "failed", "not applicable", "not run"
ENDED = (SOLVED, NOT_SOLVED, MEASURED)  # outcomes with numbers
OUTCOMES = (*ENDED, FAILED, NOT_APPLICABLE)  # outcomes that a file can hold
CELLS, OUTCOME_FILES, LOGS, INVOCATIONS = "cells", "outcomes", "logs", "sittings.jsonl"
LARGEST_LOG = LARGEST_INVOCATIONS = 64 << 20  # bytes


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.invocations = path / INVOCATIONS
        self.figures = path / "figures"
        self.report = path / "report.html"

    def run(self, cell: Cell) -> Path:
        return self.path / CELLS / cell.name

    def run_json(self, cell: Cell, name: str) -> dict[str, Any]:
        """A JSON file of a cell's run; empty if it cannot be read."""
        with suppress(OSError, ValueError), runfiles.opened(self.path, CELLS, cell.name) as folder:
            return runfiles.read_json(folder, name)
        return {}

    def outcome(self, cell: Cell) -> dict[str, Any] | None:
        """How it ended; None if it has not, or if the file is damaged."""
        with suppress(OSError, ValueError), runfiles.opened(self.path, OUTCOME_FILES) as folder:
            found = runfiles.read_json(folder, f"{cell.name}.json")
            words, reason = found.get("words"), found.get("reason", "")
            texts = isinstance(words, list) and all(isinstance(w, str) for w in (*words, reason))
            return found if texts and found.get("outcome") in OUTCOMES else None
        return None

    def write_outcome(
        self, cell: Cell, kind: str, reason: str = "", **facts: Any
    ) -> dict[str, Any]:
        known = {"outcome": kind, "reason": reason, "cores": machine.cores()}
        outcome = {**known, **facts, "words": list(cell.words)}
        try:
            with runfiles.opened(self.path, OUTCOME_FILES) as there:
                runfiles.write_json(there, f"{cell.name}.json", outcome)
        except OSError as error:
            raise unwritable(self.path / OUTCOME_FILES, error) from error
        return outcome

    def clear(self, cell: Cell) -> None:
        """Removes what an earlier attempt left."""
        for parent, name in ((OUTCOME_FILES, f"{cell.name}.json"), (CELLS, cell.name)):
            with suppress(OSError), runfiles.opened(self.path, parent) as folder:
                folder.remove(name)

    @contextmanager
    def log(self, cell: Cell) -> Iterator[BinaryIO]:
        """A new file for a cell's standard error."""
        try:
            with runfiles.opened(self.path, LOGS) as folder:
                folder.remove(_log_name(cell))
                file = folder.creating(_log_name(cell))
        except OSError as error:
            raise unwritable(self.path / LOGS, error) from error
        with file:
            yield file

    def check(self, cells: Sequence[Cell]) -> None:
        """Refuses a folder in which cells ended with other options."""
        for cell in cells:
            outcome = self.outcome(cell)
            if outcome is not None and outcome.get("words") != list(cell.words):
                difference = _difference(outcome, cell)
                raise BadRequest(
                    f"{self.path} holds {cell.name} with other options: {difference}",
                    "choose another --out, or give the earlier options",
                )

    def last_message(self, cell: Cell) -> str:
        """The last message of manyhands in the log, or else its last line."""
        with suppress(OSError), runfiles.opened(self.path, LOGS) as folder:
            lines = [line.strip() for line in folder.lines(_log_name(cell), LARGEST_LOG)]
            lines = [line for line in lines if line]
            ours = [line for line in lines if line.startswith("manyhands: ")]
            return (ours or lines or [""])[-1].removeprefix("manyhands: ")
        return ""


def _difference(outcome: dict[str, Any], cell: Cell) -> str:
    before, now = outcome.get("words", []), list(cell.words)
    gone = [word for word in before if word not in now]
    new = [word for word in now if word not in before]
    return f"before {' '.join(gone) or 'without'}, now {' '.join(new) or 'without'}"


def _log_name(cell: Cell) -> str:
    return f"{cell.name}.txt"


def unwritable(path: Path, error: OSError) -> Failure:
    return Failure(f"could not write {path}: {runfiles.reason(error)}", "free some space")


def open_folder(out: str, task: str) -> Folder:
    """A new folder, or an existing comparison's."""
    if not out:
        name = f"compare-{task}-{time.strftime('%Y%m%d-%H%M%S')}"
        out = str(rundir.free_name(Path("runs") / name.replace("/", "-").replace(":", "-")))
    folder = Folder(Path(out))
    try:
        taken = folder.path.exists() and any(folder.path.iterdir())
    except OSError as error:
        raise BadRequest(f"{out} cannot be used: {error.strerror}", "choose another") from error
    if taken and not folder.invocations.is_file():
        raise BadRequest(f"{out} is not empty and holds no comparison", "choose another --out")
    return folder


@contextmanager
def exclusive(folder: Folder) -> Iterator[None]:
    """One comparison at a time in a folder. The lock ends with the process, however it ends."""
    try:
        with runfiles.opened(folder.path, make=True) as there:
            for name in (CELLS, OUTCOME_FILES, LOGS):
                with there.folder(name, make=True):
                    pass
            there.remove_temporaries()
            lock = there.appending(".lock")
    except OSError as error:
        what = f"{folder.path} cannot be the comparison's folder: {runfiles.reason(error)}"
        raise BadRequest(what, "choose another --out") from error
    with lock:
        if not folder_lock.taken(lock.fileno()):
            what = f"{folder.path} is in use by another comparison"
            raise BadRequest(what, "wait for it, or choose another --out")
        yield


# --- Invocations --------------------------------------------------------------------------------


def add_invocation(folder: Folder, command: str) -> None:
    """Records the command, the machine and the versions."""
    try:
        with runfiles.opened(folder.path) as there, there.appending(INVOCATIONS) as file:
            file.write(json.dumps(facts(command)).encode() + b"\n")
    except OSError as error:
        raise unwritable(folder.invocations, error) from error


def facts(command: str) -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "command": command,
        "machine": machine.processor(),
        "memory_bytes": _memory_bytes(),
        "cores": machine.cores(),
        "versions": provenance.versions(),
    }


def invocations(folder: Folder) -> list[dict[str, Any]]:
    """The lines that can be read."""
    found: list[dict[str, Any]] = []
    with suppress(OSError), runfiles.opened(folder.path) as there:
        for line in there.lines(INVOCATIONS, LARGEST_INVOCATIONS):
            with suppress(ValueError, RecursionError):
                found.append(json.loads(line))
    return [invocation for invocation in found if _is_invocation(invocation)]


def _is_invocation(found: Any) -> bool:
    kinds = {"started": str, "command": str, "machine": str, "memory_bytes": int, "cores": int}
    return isinstance(found, dict) and all(
        type(found.get(name)) is kind for name, kind in {**kinds, "versions": dict}.items()
    )


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)
