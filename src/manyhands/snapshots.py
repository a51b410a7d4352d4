"""What the agent was earlier: its weights at 0 and at doubling step counts, for films through time.

Wherever a run ends, some snapshot is near a quarter of it and near a half. Of those written, only
what can still become one of the two is kept: five at most.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from manyhands import checkpoint
from manyhands.checkpoint import STEP_NAME
from manyhands.treefile import Named
from manyhands.types import State

FIRST = 1000  # agent steps


def next_due(agent_steps: int) -> int:
    """The first of 1,000, 2,000, 4,000, … that is still to come."""
    due = FIRST
    while due <= agent_steps:
        due *= 2
    return due


def save(run: Path, step: int, *, weights: Named, state: State) -> None:
    checkpoint.save_snapshot(run, step, weights=weights, state=state)
    for past in steps(run):  # beyond: of a history that a resumed run has left
        if 0 < past < step // 8 or past > step:
            shutil.rmtree(run / "snapshots" / str(past), ignore_errors=True)


def steps(run: Path) -> list[int]:
    folder = run / "snapshots"
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if STEP_NAME.fullmatch(name))


def nearest(run: Path, step: float) -> checkpoint.Loaded | None:
    """The snapshot nearest to that many agent steps; None: there is none at all."""
    found = min(steps(run), key=lambda there: (abs(there - step), -there), default=None)
    return None if found is None else checkpoint.load(run / "snapshots" / str(found))
