"""Draws Breakout's learning curves side by side.

    .venv/bin/python benchmarks/breakout_curves.py

Reads the files of NAMES in benchmarks/results/ and writes breakout-curves.png there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from manyhands.viewing.plot import headless_pyplot

RESULTS = Path(__file__).parent / "results"
NAMES = {
    "learn-breakout-pqn.json": "pqn (EPYC, bfloat16)",
    "learn-breakout-pqn-float32.json": "pqn (Xeon, as all others)",
    "learn-breakout-apex.json": "apex, 2 actors",
    "learn-breakout-impala.json": "impala, 2 actors",
}
HUMAN = 30
MINUTES = 30


def main() -> None:
    pyplot = headless_pyplot()
    figure, (by_time, by_steps) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for file, name in NAMES.items():
        for run in _runs(RESULTS / file):
            points = [point for point in run["curve"] if point[1] <= 60 * MINUTES]
            steps, seconds, means = zip(*points, strict=True)
            by_time.plot([s / 60 for s in seconds], means, label=name)
            by_steps.plot([s / 1e6 for s in steps], means, label=name)
    for axes, what in ((by_time, "minutes on two cores"), (by_steps, "million agent steps")):
        axes.axhline(HUMAN, color="grey", linestyle=":", linewidth=1)
        axes.set_xlabel(what)
        axes.set_ylabel("mean score of the last 100 games")
    by_steps.set_xscale("log")
    by_time.legend(frameon=False)
    figure.savefig(RESULTS / "breakout-curves.png", dpi=100)


def _runs(path: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return runs


if __name__ == "__main__":
    main()
