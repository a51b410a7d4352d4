"""Weights at step 0 and at doubling step counts, for videos through time.

Wherever a run ends, one snapshot is near a quarter of it and one near a half. Only those that can
still become one of the two are kept: five at most.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from manyhands.config import runfiles
from manyhands.runs import checkpoint
from manyhands.runs.checkpoint import SNAPSHOTS
from manyhands.runs.checkpoint_files import STEP_NAME, Named
from manyhands.types import State

FIRST = 1000  # agent steps


def next_due(agent_steps: int) -> int:
    """The first of 1,000, 2,000, 4,000, … that is larger than ``agent_steps``."""
    due = FIRST
    while due <= agent_steps:
        due *= 2
    return due


def save(run: Path, step: int, *, weights: Named, state: State) -> None:
    checkpoint.save_snapshot(run, step, weights=weights, state=state)
    with suppress(OSError), runfiles.opened(run, SNAPSHOTS) as folder:
        for other in _steps(folder):  # later ones are from before a resume at an earlier step
            if 0 < other < step // 8 or other > step:
                folder.remove(str(other))


def steps(run: Path) -> list[int]:
    with suppress(OSError), runfiles.opened(run, SNAPSHOTS) as folder:
        return _steps(folder)
    return []


def _steps(folder: runfiles.Directory) -> list[int]:
    return sorted(int(name) for name in folder.names() if STEP_NAME.fullmatch(name))


def nearest(run: Path, step: float) -> checkpoint.Loaded | None:
    """The snapshot nearest to ``step``; None if there is none."""
    near = min(steps(run), key=lambda other: (abs(other - step), -other), default=None)
    return None if near is None else checkpoint.load_snapshot(run, near)
