"""A comparison's folder: the runs, how each ended, and what was written of them.

``cells/NAME/`` is a run's folder, ``outcomes/NAME.json`` how it ended, ``logs/NAME.txt`` what it
said; ``sittings.jsonl`` has a line for every time the command was given. A cell has ended when its
outcome is there; it is written last, at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from manyhands import doctor, rundir
from manyhands.checkpoint import write_json_atomically
from manyhands.compare.matrix import Cell
from manyhands.types import BadRequest

SOLVED, NOT_SOLVED, MEASURED = "solved", "not solved", "measured"
FAILED, NOT_APPLICABLE, NOT_RUN = "failed", "not applicable", "not run"
ENDED = (SOLVED, NOT_SOLVED, MEASURED)  # those that have numbers


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.sittings = path / "sittings.jsonl"
        self.figures = path / "figures"
        self.report = path / "report.html"

    def run(self, cell: Cell) -> Path:
        return self.path / "cells" / cell.name

    def log(self, cell: Cell) -> Path:
        return self.path / "logs" / f"{cell.name}.txt"

    def _outcome(self, cell: Cell) -> Path:
        return self.path / "outcomes" / f"{cell.name}.json"

    def outcome(self, cell: Cell) -> dict[str, Any] | None:
        """How it ended; none if it has not."""
        return read_json(self._outcome(cell))

    def keep(self, cell: Cell, outcome: str, reason: str = "", **facts: Any) -> dict[str, Any]:
        known = {"outcome": outcome, "reason": reason, "cores": doctor.cores()}
        kept = {**known, **facts, "words": list(cell.words)}
        write_json_atomically(self._outcome(cell), kept)
        return kept

    def clear(self, cell: Cell) -> None:
        """An unfinished run is no measurement: its clock and its memory began twice."""
        self._outcome(cell).unlink(missing_ok=True)
        shutil.rmtree(self.run(cell), ignore_errors=True)

    def check(self, cells: Sequence[Cell]) -> None:
        """What has ended here must be what is asked for now."""
        for cell in cells:
            kept = self.outcome(cell)
            if kept is not None and kept.get("words") != list(cell.words):
                raise BadRequest(
                    f"{self.path} holds {cell.name} with other options: {_difference(kept, cell)}",
                    "choose another --out, or give the options of before",
                )

    def said(self, cell: Cell) -> str:
        """The sentence with which a run refused, or the last line it left."""
        with suppress(OSError):
            text = self.log(cell).read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            ours = [line for line in lines if line.startswith("manyhands: ")]
            return (ours or lines or [""])[-1].removeprefix("manyhands: ")
        return ""


def _difference(kept: dict[str, Any], cell: Cell) -> str:
    before, now = kept.get("words", []), list(cell.words)
    gone = [word for word in before if word not in now]
    new = [word for word in now if word not in before]
    return f"before {' '.join(gone) or 'without'}, now {' '.join(new) or 'without'}"


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def opened(out: str, task: str) -> Folder:
    """A new folder, or that of a comparison that goes on."""
    if not out:
        name = f"compare-{task}-{time.strftime('%Y%m%d-%H%M%S')}"
        out = str(rundir.free_name(Path("runs") / name.replace("/", "-").replace(":", "-")))
    folder = Folder(Path(out))
    try:
        taken = folder.path.exists() and any(folder.path.iterdir())
    except OSError as error:
        raise BadRequest(f"{out} cannot be used: {error.strerror}", "choose another") from error
    if taken and not folder.sittings.is_file():
        raise BadRequest(f"{out} is not empty and no comparison's", "choose another --out")
    return folder


@contextmanager
def held(folder: Folder) -> Iterator[None]:
    """One comparison at a time in a folder; the hold ends with the process, however it ends."""
    try:
        for name in ("cells", "outcomes", "logs"):
            (folder.path / name).mkdir(parents=True, exist_ok=True)
        lock = os.open(folder.path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        what = f"{folder.path} cannot be the comparison's folder: {error.strerror}"
        raise BadRequest(what, "choose another --out") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        what = f"{folder.path} is in use by another comparison"
        raise BadRequest(what, "wait for it, or choose another --out") from None
    finally:
        os.close(lock)


# --- Who measured, where ------------------------------------------------------------------------


def sit_down(folder: Folder, command: str) -> None:
    """Notes the machine and the code that measure from here on."""
    with folder.sittings.open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts(command)) + "\n")


def facts(command: str) -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "command": command,
        "machine": _processor(),
        "memory_bytes": _memory_bytes(),
        "cores": doctor.cores(),
        "versions": rundir.versions(),
    }


def sittings(folder: Folder) -> list[dict[str, Any]]:
    found = []
    with suppress(OSError):
        for line in folder.sittings.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)
