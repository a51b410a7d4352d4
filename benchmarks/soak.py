"""Does it learn as well while its workers are killed? LunarLander by hogwild, two workers.

    .venv/bin/python benchmarks/soak.py --minutes 5 --kill-every-s 10

One run in which a worker is killed with SIGKILL every ten seconds, the two in turn; then three
undisturbed ones of as many updates. Writes benchmarks/results/soak.json after every one of them;
what is in it already (of the same settings) is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import manyhands as mh
from manyhands.types import Array
from speed import machine

RESULTS = Path(__file__).parent / "results" / "soak.json"
SEEDS = (1, 2, 3)
POINTS = 100  # of the curves when they are compared
STUDENT_95 = {3: 4.303}  # the two-sided quantile, by how many were drawn
Cell = dict[str, Any]


def train(seed: int, enough: Callable[[mh.Run], bool], *, kill_every_s: float = 0.0) -> Cell:
    """A run until that is enough, and its curve: updates, mean return of 100 episodes."""
    curve, killed, next_kill_s = list[list[float]](), 0, time.monotonic() + kill_every_s
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(
            "lunarlander", recipe="hogwild", workers=2, threads=1, seed=seed, steps=10**9,
            evaluation={"period_steps": 0}, checkpoint={"replay": False}, out=Path(folder) / "run",
        )  # fmt: skip
        for metrics in run:
            if "charts/return_mean_100" in metrics:
                curve.append([metrics["updates"], round(metrics["charts/return_mean_100"], 2)])
            if kill_every_s and time.monotonic() >= next_kill_s:
                killed += kill(run, killed % 2)
                next_kill_s += kill_every_s
            if enough(run):
                break
        summary = run.summary
    kept = ("agent_steps", "updates", "episodes", "wall_s", "return_mean_100", "faults", "commit")
    return {"seed": seed, "killed": killed, **{k: summary[k] for k in kept}, "curve": curve}


def kill(run: mh.Run, seat: int) -> bool:
    """Whether somebody sat there."""
    pids = [who["pid"] for who in run.crew.staff() if (who["role"], who["id"]) == ("worker", seat)]
    if not any(pids):
        return False
    os.kill(pids[0], signal.SIGKILL)
    return True


def compare(cells: dict[str, Cell]) -> Cell:
    """Of every run where it lies beside the others, per update: whether the disturbed one is like
    an undisturbed one is seen by holding each of those against the other three as well.
    """
    curves = {name: np.array(cell["curve"], float).reshape(-1, 2) for name, cell in cells.items()}
    if min(map(len, curves.values())) == 0:
        return {}
    begin = max(curve[0, 0] for curve in curves.values())
    end = min(curve[-1, 0] for curve in curves.values())
    at = np.linspace(begin, end, POINTS)
    heights = {name: np.interp(at, curve[:, 0], curve[:, 1]) for name, curve in curves.items()}
    found: Cell = {"updates": [begin, end]}
    for name, mine in heights.items():
        others = np.stack([height for other, height in heights.items() if other != name])
        found[name] = beside(mine, others)
    return found


def beside(mine: Array, others: Array) -> Cell:
    """Between the lowest and the highest of three a fourth like them is half of the time. Where it
    is to be expected nineteen times in twenty is Student's interval for one more of them.
    """
    low, high = others.min(0), others.max(0)
    n, mean, deviation = len(others), others.mean(0), others.std(0, ddof=1)
    reach = STUDENT_95[n] * deviation * math.sqrt(1 + 1 / n)
    return {
        "share_within_the_95_percent_interval": float((np.abs(mine - mean) <= reach).mean()),
        "share_inside": float(((low <= mine) & (mine <= high)).mean()),
        "share_below": float((mine < low).mean()),
        "furthest_below": round(float(np.max(low - mine, initial=0.0)), 2),
        "mean_difference": round(float((mine - others.mean(0)).mean()), 2),
        "width_of_the_spread": round(float(np.mean(high - low)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kill-every-s", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    settings = {"minutes": asked.minutes, "kill_every_s": asked.kill_every_s}
    kept = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    found = kept if kept.get("settings") == settings else {"settings": settings, "cells": {}}

    def cell(name: str, run: Callable[[], Cell]) -> Cell:
        cells: dict[str, Cell] = found["cells"]
        if name not in cells:
            cells[name] = run()
            found["machine"] = machine()
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
        shown = {key: value for key, value in cells[name].items() if key != "curve"}
        print(name, json.dumps(shown), flush=True)
        return cells[name]

    until_s = time.monotonic() + 60 * asked.minutes
    disturbed = cell(
        "disturbed",
        lambda: train(0, lambda _: time.monotonic() > until_s, kill_every_s=asked.kill_every_s),
    )
    updates = disturbed["updates"]
    for s in SEEDS:
        cell(f"undisturbed {s}", lambda s=s: train(s, lambda run: run.crew.updates >= updates))  # type: ignore[misc]
    found["comparison"] = compare(found["cells"])
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["comparison"]))


if __name__ == "__main__":
    main()
