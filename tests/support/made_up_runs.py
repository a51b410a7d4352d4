"""Runs as their files would say they were: numbers are drawn, nothing is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.compare import folder, matrix, study
from manyhands.roles.stopwatch import PARTS_OF_TIME


def write(out: Path, asked: study.Study, *, seed: int = 1, lost: float = 0.2) -> list[matrix.Cell]:
    """Every cell that makes sense has run; a share of them was not solved."""
    rng = np.random.default_rng(seed)
    cells = matrix.cells(asked)
    place = folder.open_folder(str(out), asked.task)
    with folder.exclusive(place):
        folder.add_invocation(place, "manyhands compare of made-up runs")
        for cell in cells:
            if not cell.refusal:
                _write(place, cell, rng, solved=rng.random() > lost, metric=asked.metric)
    return cells


def _write(
    place: folder.Folder, cell: matrix.Cell, rng: np.random.Generator, *, solved: bool, metric: str
) -> None:
    run = place.run(cell)
    run.mkdir(parents=True)
    wall_s = float(rng.uniform(40, 480)) if solved else 480.0
    episodes = int(rng.integers(100, 900))
    at = {"episodes": episodes, "agent_steps": episodes * 90, "wall_s": wall_s}
    summary: dict[str, Any] = {
        **at,
        "updates": episodes * 20,
        "agent_steps_per_s": float(rng.uniform(500, 4000)),
        "updates_per_s": float(rng.uniform(100, 900)),
        "return_mean_100": 200.0,
        "best_return_mean_100": 205.0,
        "solved": {"threshold": 200.0, **at} if solved else None,
        "staleness": {"mean": float(cell.workers - 1), "p95": 2.0 * cell.workers, "dropped": 0},
        "faults": {"restarts": 0, "nonfinite_skipped": 0, "torn_rows": 0},
        "time_split": {"worker": dict(zip(PARTS_OF_TIME, rng.uniform(1, 9, 8), strict=True))},
        "bottleneck": "learner-bound: 70% of the time; more environments will not help",
        "peak_pss_mb": 300.0,
        "commit": "0" * 40,
    }
    (run / "summary.json").write_text(json.dumps(summary))
    _curve(run / "metrics.jsonl", at, rng)
    if metric == "throughput":
        first = {"wall_s": 5.0, "agent_steps": 1000, "updates": 100}
        last = {"wall_s": 25.0, "agent_steps": 1000 + episodes * 10, "updates": 100 + episodes}
        place.write_outcome(cell, folder.MEASURED, window=[first, last])
    else:
        place.write_outcome(cell, folder.SOLVED if solved else folder.NOT_SOLVED)


def _curve(path: Path, at: dict[str, Any], rng: np.random.Generator) -> None:
    shares = np.sort(rng.uniform(0.05, 1, 40))
    rows = [
        {
            "wall_s": share * at["wall_s"],
            "agent_steps": int(share * at["agent_steps"]),
            "charts/return_mean_100": -200 + 400 * share + float(rng.normal(0, 20)),
        }
        for share in shares
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
