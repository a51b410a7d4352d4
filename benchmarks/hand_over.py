"""LunarLander, resumed with other processes on its way: does the learning curve fall?

    .venv/bin/python benchmarks/hand_over.py --seeds 1 2 3

Each seed trains serially to a mean return of 100. Then it is resumed by hogwild with two workers,
by sync with two workers, and serially until it is solved (if it is solved already: for as many
steps as the others). The control is resumed at the same steps
with the process it had. A fall is the mean of the 20 episodes before a resume minus that of the 20
episodes after it. Writes benchmarks/results/hand-over.json and hand-over.png.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import manyhands as mh
from manyhands.runs import provenance
from manyhands.runs.hooks import Report
from speed import machine

RESULTS = Path(__file__).parent / "results"
NEAR = 20  # episodes before and after a resume
PART_STEPS = 30_000  # with each of the other arrangements
MOST_STEPS = 400_000
OTHERS: list[dict[str, Any]] = [
    {"strategy": "hogwild", "workers": 2},
    {"strategy": "allreduce", "workers": 2},
    {"strategy": "serial", "workers": 1},
]
Curve = list[tuple[int, float]]  # agent steps and return of each episode


def at_100(report: Report) -> None:
    if report.metrics.get("charts/return_mean_100", -1000.0) >= 100:
        report.stop("a mean return of 100")


def curve_of(run: Path) -> Curve:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    name = "charts/episodic_return"
    return sorted((row["agent_steps"], row[name]) for row in lines if name in row)


def fall(curve: Curve, at: int) -> float:
    before = [score for step, score in curve if step <= at][-NEAR:]
    after = [score for step, score in curve if step > at][:NEAR]
    return sum(before) / len(before) - sum(after) / len(after) if after else 0.0


def one(seed: int, folder: Path, *, control: bool) -> dict[str, Any]:
    path = folder / f"{seed}-{control}"
    common: dict[str, Any] = {"quiet": True}
    first = mh.train("lunarlander", out=path, seed=seed, on_report=at_100, **common)
    resumes, solved = [first.summary["agent_steps"]], None
    for number, other in enumerate(OTHERS):
        to_the_end = number == len(OTHERS) - 1 and solved is None
        steps = MOST_STEPS if to_the_end else resumes[-1] + PART_STEPS
        change = {} if control else other
        run = mh.resume(path, steps=steps, until_solved=to_the_end, **change, **common)
        solved = run.summary["solved"]
        resumes.append(run.summary["agent_steps"])
    curve = curve_of(path)
    falls = [round(fall(curve, at), 1) for at in resumes[:-1]]
    facts = {"seed": seed, "control": control, "solved": solved, "resumed_at": resumes[:-1]}
    return {**facts, "falls": falls, "curve": curve}


def draw(cells: list[dict[str, Any]], out: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = sorted({cell["seed"] for cell in cells})
    figure, axes = plt.subplots(len(rows), 1, figsize=(9, 2.6 * len(rows)), squeeze=False)
    for cell in cells:
        axis = axes[rows.index(cell["seed"])][0]
        steps = [step for step, _ in cell["curve"]]
        scores = [score for _, score in cell["curve"]]
        means = [sum(scores[max(0, i - 49) : i + 1]) / min(i + 1, 50) for i in range(len(scores))]
        label = "same process" if cell["control"] else "serial, hogwild, sync, serial"
        axis.plot(steps, means, label=label, lw=1.2)
        if not cell["control"]:
            for at in cell["resumed_at"]:
                axis.axvline(at, color="grey", lw=0.6, ls=":")
        axis.set_title(f"seed {cell['seed']}", fontsize=9)
        axis.set_ylabel("mean of 50")
    axes[-1][0].set_xlabel("agent steps")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in asked.seeds:
            for control in (False, True):
                cells.append(one(seed, Path(folder), control=control))
                shown = {name: value for name, value in cells[-1].items() if name != "curve"}
                print(shown, flush=True)
    draw(cells, RESULTS / "hand-over.png")
    for cell in cells:
        del cell["curve"]
    words = " ".join(map(str, asked.seeds))
    facts = {"machine": machine(), "commit": provenance.commit(), "date": time.strftime("%Y-%m-%d")}
    whole = {**facts, "command": f"python benchmarks/hand_over.py --seeds {words}", "cells": cells}
    (RESULTS / "hand-over.json").write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
