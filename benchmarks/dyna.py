"""How many real steps does a task take: with a learned model, without one, with a perfect one?

    .venv/bin/python benchmarks/dyna.py cartpole
    .venv/bin/python benchmarks/dyna.py lunarlander --seeds 1 2 3 --minutes 10

The measure is the number of real steps at the first of three consecutive evaluations (20 greedy
episodes each, every 1,000 real steps, not counted) at or above the task's threshold. The control is
DQN with as many updates a real step, the same network, exploration, learning rate and length of a
training episode; it also acts with averaged parameters. `parallel-2` has two learners. In the cells
`…-waiting` a real step takes 20 ms, as in a world of which there is only one.

Writes benchmarks/results/dyna-TASK.json after every cell. The same command continues. With
--minutes it ends after the cell in which that time is over.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import manyhands as mh
from manyhands.config import plans
from manyhands.runs.hooks import Report
from speed import machine

RESULTS = Path(__file__).parent / "results"
EVERY_STEPS, EPISODES, IN_A_ROW = 1_000, 20, 3
KEPT = (
    "agent_steps", "updates", "imagined_steps", "model", "wall_s", "return_mean_100", "solved",
    "time_split", "commit",
)  # fmt: skip
SHARED = (
    "lr", "lr_decay_steps", "batch_size", "steps_per_update", "warmup_steps", "n_step", "gamma",
    "epsilon_end", "epsilon_decay_steps", "average_updates",
)  # fmt: skip
MODEL: dict[str, Any] = {"recipe": "dyna-q"}
REAL_TIME = {"env": {"wait_ms": 20.0}}


def control(task: str) -> dict[str, Any]:
    """DQN with the values of the model's recipe. Its target network is copied as often."""
    with_model = plans.resolve(task, {"run": MODEL})
    own = vars(with_model.algorithm)
    fits = own["updates_per_fit"]
    period = own["target_period_updates"] * fits // (fits + 1)  # without the model's updates
    values = {name: own[name] for name in SHARED}
    network = {"hidden": with_model.network.hidden, "norm": with_model.network.norm}
    return {
        "recipe": "double-dqn",
        "envs_per_worker": with_model.top.envs_per_worker,
        "network": network,
        "env": {"train_steps": with_model.env.train_steps},
        "dqn": {**values, "target_period_updates": period},
    }


def cells(task: str) -> dict[str, dict[str, Any]]:
    """Options of `mh.train` by name."""
    parallel = {f"parallel-{n}": {"recipe": "parallel-dyna-q", "workers": n} for n in (2, 4)}
    side_by_side = {"dyna-q": MODEL, **parallel}
    return {
        **side_by_side,
        "control": control(task),
        "grounded": {**MODEL, "dyna_q": {"grounded": True}},
        **{f"{name}-waiting": {**how, **REAL_TIME} for name, how in side_by_side.items()},
    }


def reached(evaluations: list[list[float]], threshold: float) -> int | None:
    """The real steps at the first of three consecutive evaluations at or above the threshold."""
    for first in range(len(evaluations) - IN_A_ROW + 1):
        if min(mean for _, mean in evaluations[first : first + IN_A_ROW]) >= threshold:
            return int(evaluations[first][0])
    return None


def evaluations_of(folder: Path) -> list[list[float]]:
    path = folder / "metrics.jsonl"  # the first report comes before it
    rows = map(json.loads, path.read_text().splitlines() if path.exists() else [])
    name = "charts/evaluation_return"
    return [[row["agent_steps"], round(row[name], 1)] for row in rows if name in row]


def train(task: str, options: dict[str, Any], seed: int, steps: int, folder: Path) -> Any:
    threshold = plans.resolve(task, {"run": MODEL}).top.threshold
    assert threshold is not None

    def stop_when_reached(report: Report) -> None:
        if reached(evaluations_of(folder), threshold) is not None:
            report.stop()

    evaluation = {"period_steps": EVERY_STEPS, "episodes": EPISODES}
    run = mh.train(
        task, seed=seed, steps=steps, out=folder, quiet=True, evaluation=evaluation,
        on_report=stop_when_reached, **options,
    )  # fmt: skip
    if run.interrupted:
        raise SystemExit("interrupted: this cell is not kept")
    played = evaluations_of(folder)
    kept = {"machine": machine(), **{name: run.summary[name] for name in KEPT}}
    return {"real_steps": reached(played, threshold), "evaluations": played, **kept}


def summary(done: dict[str, Any]) -> dict[str, Any]:
    """Medians over seeds; a seed that never got there counts as more than any other."""
    by_name: dict[str, list[float]] = {}
    for name, cell in done.items():
        steps = cell["real_steps"]
        by_name.setdefault(name.rpartition("-s")[0], []).append(steps or float("inf"))
    middle = {name: median(steps) for name, steps in by_name.items()}
    return {name: None if m == float("inf") else m for name, m in middle.items()}


def kept(path: Path) -> dict[str, Any]:
    cells: dict[str, Any] = json.loads(path.read_text())["cells"] if path.exists() else {}
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["cartpole", "lunarlander"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", help="cells: dyna-q parallel-4 parallel-4-waiting …")
    parser.add_argument("--steps", type=int, help="real steps after which a cell gives up")
    parser.add_argument("--minutes", type=float, default=1e9)
    asked = parser.parse_args()
    path, ends_s = RESULTS / f"dyna-{asked.task}.json", monotonic() + 60 * asked.minutes
    steps = asked.steps or {"cartpole": 20_000, "lunarlander": 100_000}[asked.task]
    todo = cells(asked.task)
    for seed in asked.seeds:
        for name in asked.only or todo:
            if f"{name}-s{seed}" in kept(path) or monotonic() > ends_s:
                continue
            with tempfile.TemporaryDirectory() as folder:
                cell = train(asked.task, todo[name], seed, steps, Path(folder) / "run")
            done = {**kept(path), f"{name}-s{seed}": cell}  # others may have written meanwhile
            written = {"task": asked.task, "median_real_steps": summary(done)}
            path.write_text(json.dumps({**written, "cells": done}, indent=1) + "\n")
            print(name, seed, cell["real_steps"], f"{cell['wall_s']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
