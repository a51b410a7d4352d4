"""Workers that share a table die and are replaced; what was learned and remembered stays."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.envs.maze import Mazes


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize(
    ("recipe", "strategy"),
    [
        ("q-learning", "hogwild"),
        ("tabular-dyna-q", "parameter_server"),
        ("tabular-dyna-q", "allreduce"),
        ("prioritized-sweeping", "hogwild"),
    ],
)
def test_a_killed_worker_of_a_table_is_replaced(recipe: str, strategy: str, tmp_path: Path) -> None:
    run = mh.Run(
        "maze", recipe=recipe, strategy=strategy, workers=2, steps=6000, seed=1, quiet=True,
        threads=1, tabular={"lr": 0.5}, evaluation={"period_steps": 0}, out=tmp_path / "run",
    )  # fmt: skip
    killed = 0
    for _ in run:
        table = json.loads((run.path / "status.json").read_text())["workers"]
        alive = [row["pid"] for row in table if row["pid"] and row["role"] == "worker"]
        if not killed and len(alive) == 2 and run.workers.updates > 100:
            killed = alive[-1]
            os.kill(killed, signal.SIGKILL)
    assert killed
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["faults"]["restarts"] == 1
    assert summary["agent_steps"] >= 6000
    assert steps_to_the_goal(run) <= 2 * Mazes(1, 1).shortest()


def steps_to_the_goal(run: mh.Run) -> int:
    """Of the greedy way; 1,000 if it does not get there."""
    mazes = Mazes(1, 1)
    table, at = run.workers.model.vector.numpy().reshape(-1, 4), mazes.start
    for step in range(1000):
        if mazes.goals[at]:
            return step
        at = int(mazes.after[at, table[at].argmax()])
    return 1000
