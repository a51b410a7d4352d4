"""Does planning pay on the Dyna maze? The textbook's two figures, with our recipes.

    .venv/bin/python benchmarks/planning.py episodes --seeds 1 2 3
    .venv/bin/python benchmarks/planning.py sweeping --seeds 1 2 3
    .venv/bin/python benchmarks/planning.py optimum --seeds 1 2 3
    .venv/bin/python benchmarks/planning.py draw

`episodes` (Sutton and Barto 2018, figure 8.2): steps per episode with 0, 5 and 50 planning steps.
`sweeping` (example 8.4): updates until the greedy way from S to G is near the shortest, for Dyna-Q
and prioritized sweeping, both with at most 5 updates per step, on mazes of growing size. It is
checked after every step. Near is at most 1.2 times as long: a shorter way that epsilon-greedy steps
did not find yet is a question of exploration, and took up to 76,000 steps in the smallest maze.
`optimum`: the same until the way is the shortest, on the two smallest mazes, with epsilon 0.5.
Writes benchmarks/results/planning-episodes.json, planning-sweeping.json, planning-optimum.json and
planning.png.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import manyhands as mh
from manyhands.envs.maze import Mazes
from manyhands.roles.worker import Worker
from manyhands.runs import provenance
from manyhands.viewing.plot import headless_pyplot
from speed import machine

RESULTS = Path(__file__).parent / "results"
PLANNING_STEPS, EPISODES = (0, 5, 50), 30
RESOLUTIONS, ALPHA, UPDATES_PER_STEP = (1, 2, 3, 4), 1.0, 5
RECIPES = ("tabular-dyna-q", "prioritized-sweeping")
MOST_UPDATES, NEAR = 3_000_000, 1.2
OPTIMUM_RESOLUTIONS, CURIOUS = (1, 2), 0.5


@contextmanager
def worker_of(recipe: str, seed: int, resolution: int = 1, **tabular: Any) -> Iterator[Worker]:
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(
            "maze", recipe=recipe, seed=seed, out=Path(folder) / "run", threads=1,
            env={"resolution": resolution}, tabular=tabular,
        )  # fmt: skip
        yield run.worker


def episode_lengths(planning_steps: int, seed: int) -> list[int]:
    """Of the first episodes, with the recipe's own values: alpha 0.1, epsilon 0.1, gamma 0.95."""
    with worker_of("tabular-dyna-q", seed, planning_steps=planning_steps) as worker:
        scores = worker.actor.scores
        while scores.count < EPISODES:
            worker.turn()
        return [episode.length for episode in scores.fresh[:EPISODES]]


def updates_until_near(
    recipe: str, resolution: int, seed: int, *, times: float, **tabular: Any
) -> dict[str, Any]:
    """`times`: how much longer than the shortest way is near."""
    tabular = {"lr": ALPHA, "planning_steps": UPDATES_PER_STEP - 1, **tabular}
    mazes = Mazes(1, resolution)
    near = int(times * mazes.shortest())
    with worker_of(recipe, seed, resolution, **tabular) as worker:
        while worker.learner.updates < MOST_UPDATES:
            worker.turn()
            if worker.actor.scores.count and is_near(worker, mazes, near):
                break
        solved = worker.learner.updates < MOST_UPDATES
        return {
            "updates": worker.learner.updates if solved else None,
            "agent_steps": worker.actor.agent_steps,
        }


def is_near(worker: Worker, mazes: Mazes, steps: int) -> bool:
    """Whether the greedy way reaches the goal in so many steps."""
    table, at = worker.model.vector.numpy().reshape(-1, worker.env.spec.actions), mazes.start
    for _ in range(steps):
        at = int(mazes.after[at, table[at].argmax()])
        if mazes.goals[at]:
            return True
    return False


def measured(what: str, cells: list[dict[str, Any]]) -> None:
    facts = {"machine": machine(), "commit": provenance.commit(), "date": time.strftime("%Y-%m-%d")}
    command = f"python benchmarks/planning.py {what}"
    written = {"command": command, **facts, "cells": cells}
    (RESULTS / f"planning-{what}.json").write_text(json.dumps(written, indent=1) + "\n")


def episodes(seeds: list[int]) -> None:
    cells = list[dict[str, Any]]()
    for planning_steps in PLANNING_STEPS:
        lengths = {seed: episode_lengths(planning_steps, seed) for seed in seeds}
        cells.append({"planning_steps": planning_steps, "lengths": lengths})
        print(planning_steps, {seed: some[1:6] for seed, some in lengths.items()}, flush=True)
        measured("episodes", cells)


def sweeping(seeds: list[int]) -> None:
    compare("sweeping", RESOLUTIONS, seeds, times=NEAR)


def optimum(seeds: list[int]) -> None:
    compare("optimum", OPTIMUM_RESOLUTIONS, seeds, times=1.0, epsilon_end=CURIOUS)


def compare(what: str, resolutions: tuple[int, ...], seeds: list[int], **given: Any) -> None:
    cells = list[dict[str, Any]]()
    for resolution in resolutions:
        for recipe in RECIPES:
            found = {str(s): updates_until_near(recipe, resolution, s, **given) for s in seeds}
            states = int((Mazes(1, resolution).signs != "#").sum())
            cells.append({"recipe": recipe, "resolution": resolution, "states": states, **found})
            print(cells[-1], flush=True)
            measured(what, cells)


def draw() -> None:
    pyplot = headless_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for n, cell in enumerate(json.loads((RESULTS / "planning-episodes.json").read_text())["cells"]):
        lengths, numbers = np.array(list(cell["lengths"].values())), range(2, EPISODES + 1)
        label = f"{cell['planning_steps']} planning steps"
        for one in lengths:
            left.plot(numbers, one[1:], color=f"C{n}", alpha=0.3, linewidth=0.8)
        left.plot(numbers, lengths.mean(0)[1:], color=f"C{n}", label=label)
    left.set(xlabel="episode", ylabel="steps", ylim=(0, 600))
    cells = json.loads((RESULTS / "planning-sweeping.json").read_text())["cells"]
    for n, recipe in enumerate(RECIPES):
        own = [cell for cell in cells if cell["recipe"] == recipe]
        points = [(cell["states"], updates_of(cell)) for cell in own]
        for states, updates in points:
            right.scatter([states] * len(updates), updates, color=f"C{n}", s=14, alpha=0.5)
        sizes, means = [states for states, _ in points], [mean(some) for _, some in points]
        right.plot(sizes, means, color=f"C{n}", label=recipe)
    right.set(xlabel="states", ylabel="updates until near the shortest", xscale="log", yscale="log")
    for axes in (left, right):
        axes.legend(frameon=False)
    figure.savefig(RESULTS / "planning.png", dpi=100)


def updates_of(cell: dict[str, Any]) -> list[int]:
    return [found["updates"] for found in cell.values() if isinstance(found, dict)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("episodes", "sweeping", "optimum", "draw"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    if options.what == "draw":
        draw()
    else:
        measures = {"episodes": episodes, "sweeping": sweeping, "optimum": optimum}
        measures[options.what](options.seeds)


if __name__ == "__main__":
    main()
