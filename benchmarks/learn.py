"""Does it learn? Trains a task with several seeds and keeps every outcome, failures included.

    .venv/bin/python benchmarks/learn.py cartpole --seeds 1 2 3 -- --until-solved

Writes benchmarks/results/learn-NAME.json after every seed, with the curve of the mean of 100.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from speed import machine

RESULTS = Path(__file__).parent / "results"
KEPT = (
    "agent_steps", "frames", "updates", "episodes", "wall_s", "agent_steps_per_s",
    "updates_per_s", "return_mean_100", "best_return_mean_100", "solved", "faults",
    "time_split", "bottleneck", "peak_pss_mb", "command", "commit",
)  # fmt: skip
POINTS = 60


def curve(path: Path) -> list[list[float]]:
    """[agent steps, seconds, mean return of 100], thinned out."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [r for r in rows if "charts/return_mean_100" in r]
    step = max(1, len(rows) // POINTS)
    kept = rows[::step] + ([rows[-1]] if rows else [])
    return [
        [r["agent_steps"], round(r["wall_s"], 1), round(r["charts/return_mean_100"], 2)]
        for r in kept
    ]


def reached(path: Path, levels: list[float]) -> dict[str, Any]:
    """When the mean of 100 first reached each level; None if it never did."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found: dict[str, Any] = {}
    for level in levels:
        there = (row for row in rows if row.get("charts/return_mean_100", -1e9) >= level)
        first = next(there, None)
        found[f"{level:g}"] = first and {name: first[name] for name in ("agent_steps", "wall_s")}
    return found


def newest(path: Path, name: str) -> dict[str, float]:
    """The last reported value; empty without one."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    said = [row[f"charts/{name}"] for row in rows if f"charts/{name}" in row]
    return {name: round(said[-1], 3)} if said else {}


def one(task: str, seed: int, flags: list[str], asked: argparse.Namespace, out: Path) -> Any:
    if not (out / "summary.json").is_file():  # a kept run is not trained again
        command = [sys.executable, "-m", "manyhands", "train", task, "--seed", str(seed)]
        subprocess.run([*command, "--out", str(out), *flags], check=True)
    evaluate = [sys.executable, "-m", "manyhands", "evaluate", str(out), "--json"]
    done = subprocess.run(
        [*evaluate, "--episodes", str(asked.episodes)], check=True, capture_output=True, text=True
    )
    summary = json.loads((out / "summary.json").read_text())
    score = json.loads(done.stdout.splitlines()[-1])
    kept = {name: summary[name] for name in KEPT}
    kept["command"] = kept["command"].replace(str(out), f"runs/{out.name}")
    network = json.loads((out / "config.json").read_text())["config"]["network"]
    kept["precision"] = network.get("precision", "float32")
    evaluation = {name: score[name] for name in ("episodes", "mean", "std", "epsilon")}
    kept |= newest(out / "metrics.jsonl", "samples_per_insert")
    if asked.levels:
        kept["reached"] = reached(out / "metrics.jsonl", asked.levels)
    return {"seed": seed, **kept, "evaluation": evaluation, "curve": curve(out / "metrics.jsonl")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--name", help="name of the result; default: the task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--episodes", type=int, default=100, help="episodes of the final evaluation"
    )
    parser.add_argument("--levels", type=float, nargs="+", help="levels of the mean of 100 to time")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    own, flags = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, flags = own[:at], own[at + 1 :]
    options = parser.parse_args(own)
    path = RESULTS / f"learn-{options.name or options.task}.json"
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            out = (options.keep or Path(folder)) / f"{options.name or options.task}-{seed}"
            runs.append(one(options.task, seed, flags, options, out))
            written = {"task": options.task, "machine": machine(), "runs": runs}
            path.write_text(json.dumps(written, indent=1) + "\n")
            print(seed, runs[-1]["solved"], runs[-1]["evaluation"], flush=True)


if __name__ == "__main__":
    main()
