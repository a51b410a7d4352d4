"""Does it learn as well while its workers are killed? LunarLander by hogwild, two workers.

    .venv/bin/python benchmarks/soak.py --minutes 5 --kill-every-s 10

For every seed there are two runs. In one, a worker gets SIGKILL every ten seconds, the two workers
in turn. The other is undisturbed and makes as many updates. Writes benchmarks/results/soak.json
after every run (runs with the same settings are not repeated), then compares the curves per update
and draws them in soak.png.

The measure was fixed before these runs: how often the mean curve of the killed runs lies between
the lowest and the highest undisturbed run, and how often each run lies between the runs of the
other kind. If kills change nothing, killed runs lie among undisturbed runs as often as the reverse.
By chance, a fourth run lies between three like it half of the time. `chance_of_less` is a
permutation test: the share of all choices of as many runs whose mean height over all updates is at
most that of the killed runs. `share_within_two_deviations` (about the mean of the three others, by
their own standard deviation) was added after the runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import manyhands as mh
from manyhands.types import Array
from manyhands.viewing.plot import headless_pyplot
from speed import machine

RESULTS = Path(__file__).parent / "results" / "soak.json"
SEEDS = (1, 2, 3)
POINTS = 100  # of the curves when they are compared
SOLVED = 200.0
COLORS = {"killed": "tab:red", "undisturbed": "tab:blue"}
Cell = dict[str, Any]


def train(seed: int, enough: Callable[[mh.Run], bool], *, kill_every_s: float = 0.0) -> Cell:
    """Trains until `enough`, and returns its curve: updates, mean return of 100 episodes."""
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


def kill(run: mh.Run, rank: int) -> bool:
    """Whether there was a process to kill."""
    pids = [
        process["pid"]
        for process in run.workers.process_table()
        if (process["role"], process["id"]) == ("worker", rank)
    ]
    if not any(pids):
        return False
    os.kill(pids[0], signal.SIGKILL)
    return True


def train_for_minutes(minutes: float, seed: int, kill_every_s: float) -> Cell:
    until_s = time.monotonic() + 60 * minutes
    return train(seed, lambda _: time.monotonic() > until_s, kill_every_s=kill_every_s)


def train_to_updates(updates: int, seed: int) -> Cell:
    return train(seed, lambda run: run.workers.updates >= updates)


def heights(cells: dict[str, Cell]) -> tuple[Array, dict[str, Array]]:
    """Numbers of updates that all runs reached, and every run's curve there."""
    curves = {name: np.array(cell["curve"], float).reshape(-1, 2) for name, cell in cells.items()}
    begin = max(curve[0, 0] for curve in curves.values())
    end = min(curve[-1, 0] for curve in curves.values())
    at = np.linspace(begin, end, POINTS)
    return at, {name: np.interp(at, curve[:, 0], curve[:, 1]) for name, curve in curves.items()}


def compare(cells: dict[str, Cell]) -> Cell:
    at, height = heights(cells)
    kinds = {kind: np.stack([height[f"{kind} {s}"] for s in SEEDS]) for kind in COLORS}
    found: Cell = {"updates": [at[0], at[-1]]}
    for kind, other in (("killed", "undisturbed"), ("undisturbed", "killed")):
        found[f"mean of {kind}"] = beside(kinds[kind].mean(0), kinds[other])
        for seed, mine in zip(SEEDS, kinds[kind], strict=True):
            found[f"{kind} {seed}"] = beside(mine, kinds[other])
    found["mean_height"] = {name: round(float(mine.mean()), 2) for name, mine in height.items()}
    found["updates_to_solve"] = {name: first_at(SOLVED, cell) for name, cell in cells.items()}
    found["chance_of_less"] = chance_of_less(kinds["killed"].mean(1), kinds["undisturbed"].mean(1))
    return found


def beside(mine: Array, others: Array) -> Cell:
    """How often a curve lies between the lowest and the highest of others, and how far outside."""
    low, high = others.min(0), others.max(0)
    middle, deviation = others.mean(0), others.std(0, ddof=1)
    return {
        "share_inside": float(((low <= mine) & (mine <= high)).mean()),
        "share_above": float((mine > high).mean()),
        "share_below": float((mine < low).mean()),
        "share_within_two_deviations": float((np.abs(mine - middle) <= 2 * deviation).mean()),
        "furthest_below": round(float(np.max(low - mine, initial=0.0)), 2),
        "mean_difference": round(float((mine - middle).mean()), 2),
        "width_of_the_spread": round(float(np.mean(high - low)), 2),
    }


def first_at(level: float, cell: Cell) -> float | None:
    return next((updates for updates, mean in cell["curve"] if mean >= level), None)


def chance_of_less(killed: Array, undisturbed: Array) -> float:
    every = np.concatenate([killed, undisturbed])
    means = [np.mean(some) for some in itertools.combinations(every, len(killed))]
    return float((np.array(means) <= killed.mean()).mean())


def draw(cells: dict[str, Cell], path: Path) -> None:
    at, height = heights(cells)
    pyplot = headless_pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    undisturbed = np.stack([height[f"undisturbed {s}"] for s in SEEDS])
    axes.fill_between(at, undisturbed.min(0), undisturbed.max(0), color="tab:blue", alpha=0.15)
    for kind, color in COLORS.items():
        for seed in SEEDS:
            label = f"{kind}, seeds 1, 2, 3" if seed == SEEDS[0] else None
            axes.plot(at, height[f"{kind} {seed}"], color=color, linewidth=1, label=label)
    mean = np.stack([height[f"killed {s}"] for s in SEEDS]).mean(0)
    axes.plot(at, mean, color="tab:red", linewidth=2.5, label="mean of the killed")
    axes.set_xlabel("updates")
    axes.set_ylabel("mean return of the last 100 episodes")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kill-every-s", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    settings = {"minutes": asked.minutes, "kill_every_s": asked.kill_every_s, "seeds": list(SEEDS)}
    kept = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    found = kept if kept.get("settings") == settings else {"settings": settings, "cells": {}}
    cells: dict[str, Cell] = found["cells"]

    def keep(name: str, run: Callable[[], Cell]) -> None:
        if name not in cells:
            cells[name] = {**run(), "machine": machine()}
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
        shown = {key: value for key, value in cells[name].items() if key != "curve"}
        print(name, json.dumps(shown), flush=True)

    for s in SEEDS:
        keep(f"killed {s}", partial(train_for_minutes, asked.minutes, s, asked.kill_every_s))
        keep(f"undisturbed {s}", partial(train_to_updates, cells[f"killed {s}"]["updates"], s))
    found["comparison"] = compare(cells)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    draw(cells, asked.out.with_suffix(".png"))
    print(json.dumps(found["comparison"], indent=1))


if __name__ == "__main__":
    main()
