"""Kills the main process at random moments, then resumes the run with other processes.

    .venv/bin/python benchmarks/resume_kills.py --kills 50

A seed draws how the run shares its work, when its main process is sent SIGKILL, and how the resumed
run shares its work. A resumed run must reach its end, and no counter may go back. Writes
benchmarks/results/resume-kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from campaign import left_behind, names_in_memory, report

RESULTS = Path(__file__).parent / "results" / "resume-kills.json"
SHARES = {
    "serial": "--strategy serial --workers 1",
    "lock 2": "--strategy lock --workers 2",
    "hogwild 2": "--strategy hogwild --workers 2",
    "hogwild 3": "--strategy hogwild --workers 3",
    "server 1 x 2": "--strategy parameter_server --workers 2",
    "server 3 x 2": "--strategy parameter_server --workers 2 --parameter-server.shards 3",
    "allreduce 2": "--strategy allreduce --workers 2",
    "gossip 3": "--strategy gossip --workers 3",
    "apart 2 + 1": "--strategy serial --actors 2 --learners 1",
}
SMALL = (
    "--dqn.warmup-steps 100 --dqn.batch-size 16 --dqn.steps-per-update 2 --memory.capacity 4000 "
    "--network.hidden 32,32 --envs-per-worker 2 --threads 1 --quiet "
    "--checkpoint.period-minutes 0.008"
)
LONGEST_S = 2.5  # from the first checkpoint to the kill
PATIENCE_S = 120.0
LEAST_STEPS, MORE_STEPS = 200, 2000
Cell = dict[str, Any]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "manyhands", *words]


def one(number: int, chance: random.Random, folder: Path) -> Cell:
    before, after = chance.sample(list(SHARES), 2)
    run, delay_s = folder / str(number), chance.uniform(0, LONGEST_S)
    cell: Cell = {"before": before, "after": after, "killed_after_s": round(delay_s, 3)}
    words = ["train", "cartpole", "--steps", "10000000", "--seed", str(number + 1)]
    words += ["--out", str(run), *SMALL.split(), *SHARES[before].split()]
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(run, process)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    saved = saved_step(run)
    words = ["resume", str(run), "--quiet", "--steps", str(saved + MORE_STEPS)]
    none = "" if "--actors" in SHARES[after] else "--actors 0"
    resumed = subprocess.run(
        command(*words, *none.split(), *SHARES[after].split()),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return cell | judged(run, resumed, saved)


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while saved_step(run) < LEAST_STEPS:
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(f"no checkpoint in {run}: {process.communicate()[1]}")
        time.sleep(0.02)


def saved_step(run: Path) -> int:
    return max(
        [0, *(int(path.parent.name) for path in run.glob("checkpoints/[0-9]*/manifest.json"))]
    )


def judged(run: Path, resumed: subprocess.CompletedProcess[str], saved: int) -> Cell:
    if resumed.returncode:
        return {"checkpoint": saved, "wrong": [resumed.stderr[-500:]]}
    summary = json.loads((run / "summary.json").read_text())
    wrong = []
    if summary["agent_steps"] < saved + MORE_STEPS:
        wrong.append(f"{summary['agent_steps']} agent steps of {saved + MORE_STEPS}")
    if summary["updates"] > summary["gradients"] or summary["faults"]["restarts"]:
        wrong.append(f"{summary['updates']} updates, {summary['faults']}")
    names = ("agent_steps", "updates", "gradients", "episodes")
    facts = {name: summary[name] for name in names}
    return {"checkpoint": saved, **facts, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    chance, cells, names = random.Random(asked.seed), dict[str, Cell](), names_in_memory()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.kills):
            cells[str(number)] = one(number, chance, Path(folder))
            print(number, cells[str(number)], flush=True)
    behind = left_behind(names, [os.getpid()])
    words = f"resume_kills.py --kills {asked.kills} --seed {asked.seed}"
    good = sum(not cell["wrong"] for cell in cells.values())
    content = {"kills": asked.kills, "resumed": good, "left_behind": behind, "cells": cells}
    return report(asked.out, words, content)


if __name__ == "__main__":
    sys.exit(main())
