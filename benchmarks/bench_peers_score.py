"""Seconds until a score: LunarLander 200 and Breakout 30, by each side's own best recipe.

    make bench-peers-score                 continues where it was stopped
    make bench-peers-score MORE="--tasks lunarlander --seeds 1"

A cell is one task, side and seed: one process on the whole machine, at most --minutes. The score is
the mean of the last 100 training episodes, exploration included, of the whole game and not clipped.
Seconds are counted from the start of the process. Writes benchmarks/results/peers-score.json.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from bench_peers import HERE, PEERS, SIDES, finished, python_of

RESULTS = HERE / "results" / "peers-score.json"
BARS = {"lunarlander": 200.0, "breakout": 30.0}
FILES = {
    "ours": ("ours", "score_ours.py"),
    "sb3-dqn": ("sb3", "score_sb3.py"),
    "sb3-ppo": ("sb3", "score_sb3.py"),
    "sbx-ppo": ("sbx", "score_sbx.py"),
}


def measure(side: str, task: str, seed: int, minutes: float) -> dict[str, Any]:
    library, file = FILES[side]
    python = python_of(SIDES[library])
    if not python.exists():
        return {"error": "its environment could not be installed"}
    words = [task, str(BARS[task]), str(seed), str(60 * minutes), side.rpartition("-")[2]]
    command = [str(python), str(PEERS / file), *words]
    done = finished(command, dict(os.environ), 60 * minutes + 120)
    if done is None:
        return {"error": "did not stop when its time was over"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"score"'):
            found: dict[str, Any] = json.loads(line)
            return found
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"error": last[:200]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--sides", nargs="+", choices=list(FILES), default=list(FILES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=0.0, help="0: 15, for Breakout 60")
    parser.add_argument("--fresh", action="store_true", help="forget the cells of before")
    given = parser.parse_args()
    from manyhands.runs import provenance
    from speed import machine

    exists = Path(RESULTS).exists() and not given.fresh
    kept: dict[str, Any] = json.loads(RESULTS.read_text())["cells"] if exists else {}
    about = {"command": "make bench-peers-score", "machine": machine(), "bars": BARS}
    for task in given.tasks:
        minutes = given.minutes or {"breakout": 60.0}.get(task, 15.0)
        for seed in given.seeds:
            for side in given.sides:
                name = f"{task} {side} {seed}"
                if name in kept:
                    continue
                found = measure(side, task, seed, minutes)
                kept[name] = {**found, "minutes": minutes, "commit": provenance.commit()}
                written = {**about, "commit": provenance.commit(), "cells": kept}
                RESULTS.write_text(json.dumps(written, indent=1) + "\n")
                print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
