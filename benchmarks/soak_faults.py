"""Fault campaign: 81 kinds of misbehaving environments, each with one worker and with two.

    .venv/bin/python benchmarks/soak_faults.py            # or: make soak-faults

Every run must end with the requested steps, exact counters and its faults recorded. If the
environment ends the only process, the run ends with it. Nothing may be left behind: no process, no
name in /dev/shm, no lock. Writes benchmarks/results/soak-faults.json.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import manyhands as mh
from campaign import (
    FEW,
    SMALL,
    end,
    faults_of,
    left_behind,
    names_in_memory,
    report,
    silent,
    wrong_with_counters,
    wrong_with_folder,
)
from misbehaving import HARMLESS, KINDS, Diary, Kind, misbehaving

RESULTS = Path(__file__).parent / "results" / "soak-faults.json"
STEPS = 300
HANG_S = 8.0
ENDED_S = 120.0
CODES = {"exits with code 0": 0, "exits with code 3": 3, "kills itself": -9, "crashes": -11}
Cell = dict[str, Any]


def train(kind: Kind, workers: int, folder: Path) -> mh.Run:
    options = SMALL | FEW | {"workers": workers, "strategy": "hogwild", "hang_s": HANG_S}
    return mh.train(misbehaving(folder, kind, workers), steps=STEPS, out=folder / "run", **options)


def case(kind: Kind, workers: int) -> Cell:
    """Makes one run and lists everything that is wrong with it."""
    began_s, before, here = time.monotonic(), names_in_memory(), Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        folder, diary = Path(made), Diary(Path(made))
        ends_alone = workers == 1 and kind.leaves and (kind.when, kind.does) != ("close", "hangs")
        try:
            with silent(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrong = alone(kind, folder) if ends_alone else together(kind, workers, folder)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit would end the campaign
            wrong = [f"raised {type(error).__name__}: {error}"]
        os.chdir(here)
        wrong += left_behind(before, diary.helpers())
        end(diary.helpers())
    return {"wrong": wrong, "wall_s": round(time.monotonic() - began_s, 1)}


# --- Runs that survive ----------------------------------------------------------------------------


def together(kind: Kind, workers: int, folder: Path) -> list[str]:
    run = train(kind, workers, folder)
    summary, diary, lanes = run.summary, Diary(folder), FEW["envs_per_worker"]
    dies = kind.leaves and workers > 1
    deaths = dies * (workers if kind.when == "close" else 1)
    wrong = wrong_with_counters(summary, diary, lost=lanes * deaths)
    wrong += wrong_with_folder(run.path, "finished")
    most = STEPS + workers * lanes
    if not STEPS <= summary["agent_steps"] <= most:
        wrong.append(f"{summary['agent_steps']} agent steps, {STEPS} to {most} were requested")
    rows, breaks = faults_of(run.path), run.progress.breaks
    if breaks != (expected := expected_breaks(kind, dies=dies)):
        wrong.append(f"{breaks} environments broke instead of {expected}")
    if kind.when != "close" and len(rows) != deaths + breaks:
        wrong.append(f"{len(rows)} faults are recorded of {deaths} deaths and {breaks} breaks")
    followed = sum(
        row["action"].startswith("restarted") for row in rows
    )  # the others died at the end
    if summary["faults"]["restarts"] != followed:
        wrong.append(f"{summary['faults']['restarts']} restarts counted, {followed} recorded")
    if any(len(str(row)) > 8000 or "\x1b" in str(row) for row in rows):
        wrong.append("a fault is too long, or has escape codes")
    return wrong


def expected_breaks(kind: Kind, *, dies: bool) -> int:
    """A process that dies cannot report a break."""
    if dies or kind.does in HARMLESS or kind.when == "close":
        return 0
    return 1


# --- Runs whose only process ends -----------------------------------------------------------------


def alone(kind: Kind, folder: Path) -> list[str]:
    words = [sys.executable, __file__, "--one", str(KINDS.index(kind)), "--folder", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        if kind.does == "hangs":
            return interrupted(process, folder)
        process.communicate(timeout=ENDED_S)
        wrong = wrong_with_folder(
            folder / "run", "finished" if kind.when == "close" else "training"
        )
        if process.returncode != CODES[kind.does]:
            wrong.append(f"exit code {process.returncode}")
        return wrong
    finally:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str], folder: Path) -> list[str]:
    """The first Ctrl-C reports what the run waits for. The second ends it."""
    until_s = time.monotonic() + ENDED_S
    while not (folder / "done").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=ENDED_S)
    wrong = [] if "_hang (misbehaving.py" in said else [f"Ctrl-C said {said!r}"]
    if process.returncode != 130:
        wrong.append(f"exit code {process.returncode}")
    return wrong


# --- All of them ----------------------------------------------------------------------------------


def campaign(cases: list[tuple[Kind, int]]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for kind, workers in cases:
        name = f"{kind.name}; {'one worker' if workers == 1 else f'{workers} workers'}"
        cells[name] = case(kind, workers)
        print(f"{len(cells)} of {len(cases)}, {name}: {cells[name]}", file=sys.stderr, flush=True)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", type=int, default=0, help="run only this many, drawn with the seed"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one >= 0:
        train(KINDS[asked.one], 1, asked.folder)
        return 0
    cases = [(kind, workers) for kind in KINDS for workers in (1, 2)]
    if asked.only:
        cases = random.Random(asked.seed).sample(cases, asked.only)
    command = f"soak_faults.py --only {asked.only} --seed {asked.seed}" if asked.only else ""
    return report(
        asked.out, command or "soak_faults.py", {"kinds": len(KINDS), "cells": campaign(cases)}
    )


if __name__ == "__main__":
    sys.exit(main())
