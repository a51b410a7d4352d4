"""Whether the run in a folder trains, has ended or was killed; and a list of runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

from manyhands.config import runfiles
from manyhands.runs import folder_lock
from manyhands.types import BadRequest
from manyhands.viewing.display import score_text

TRAINING, FINISHED, STOPPED, FAILED, DEAD = "training", "finished", "stopped", "failed", "dead"
ENDS = {"finished": FINISHED, "interrupted": STOPPED, "failed": FAILED}  # as status.json has them
SILENT_S = 60.0  # without news a run is dead, if neither lock nor process can be checked


class Life(NamedTuple):
    state: str
    status: dict[str, Any]  # the newest status.json

    def sentence(self) -> str:
        """What is known about the death of a dead run."""
        pid, since = self.status.get("pid", "unknown"), self.status.get("time")
        steps = self.status.get("agent_steps", 0)
        when = f", {_ago(time.time() - since)} ago" if isinstance(since, int | float) else ""
        return f"it was killed: its process (pid {pid}) last wrote at {steps:,} agent steps{when}"


def of(run: Path) -> Life:
    status = read(run, "status.json")
    if _held(run, status):
        return Life(TRAINING, status)
    return Life(ENDS.get(str(status.get("state")), DEAD), status)


def _held(run: Path, status: dict[str, Any]) -> bool:
    """Whether a process holds the folder."""
    try:
        descriptor = folder_lock.opened(run)
    except OSError:
        return False
    try:
        return folder_lock.is_held(descriptor)
    except OSError:  # a disk without locks
        return status.get("state") == TRAINING and _seems_alive(status)
    finally:
        os.close(descriptor)


def _seems_alive(status: dict[str, Any]) -> bool:
    pid, since = status.get("pid"), status.get("time")
    if status.get("host") == gethostname() and isinstance(pid, int):
        return Path(f"/proc/{pid}").exists()
    return isinstance(since, int | float) and time.time() - since < SILENT_S


def read(run: Path, name: str) -> dict[str, Any]:
    """Empty if the file is missing or is not a JSON object."""
    with suppress(OSError, ValueError), runfiles.opened(run) as folder:
        return runfiles.read_json(folder, name)
    return {}


def _ago(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} seconds"


# --- A list of runs -----------------------------------------------------------------------------

HEADS = ("run", "task", "recipe", "state", "agent steps", "return", "solved")
RIGHT = {"agent steps", "return"}


def listed(folder: Path) -> list[str]:
    """One line for each run in the folder. The folder may be a run itself."""
    rows = list(_rows(folder))
    if not rows:
        raise BadRequest(f"{folder} has no runs in it", "give the folder of a run, or of runs")
    table = [HEADS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADS))]
    return [
        "  ".join(
            text.rjust(width) if head in RIGHT else text.ljust(width)
            for head, text, width in zip(HEADS, row, widths, strict=True)
        ).rstrip()
        for row in table
    ]


def _rows(folder: Path) -> Iterator[tuple[str, ...]]:
    try:
        paths = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    except OSError as error:
        what = f"{folder} cannot be read: {error.strerror}"
        raise BadRequest(what, "give the folder of a run, or of runs") from error
    for path in paths:
        config = read(path, "config.json")
        if config:
            yield _row(path, config)


def _row(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    state, status = of(path)
    layer = config.get("config")
    top = layer.get("run") if isinstance(layer, dict) else None
    recipe = top.get("recipe", "") if isinstance(top, dict) else ""
    score, steps = status.get("return_mean_100"), status.get("agent_steps", 0)
    solved = status.get("solved")
    when = solved.get("agent_steps") if isinstance(solved, dict) else None
    cells = (
        path.resolve().name,
        config.get("task", ""),
        recipe,
        state,
        f"{steps:,}" if isinstance(steps, int) else "",
        score_text(score) if isinstance(score, int | float) else "–",
        f"at {when:,}" if isinstance(when, int) else "no",
    )
    return tuple(_plain(str(cell)) for cell in cells)


def _plain(text: str) -> str:
    """The folder may be from an untrusted source: cuts long texts and replaces control codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60])
