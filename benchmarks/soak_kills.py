"""Kill campaign: random signals to random processes of every recipe, in turn.

    .venv/bin/python benchmarks/soak_kills.py --minutes 30            # or: make soak-kills

A process is killed, stopped and then killed, crashed, or sent SIGTERM, which only the main process
should obey. A seed decides which process, how and when; scheduling is up to the machine.
Every run must continue, report every death, count exactly, and leave nothing behind. Recipes of one
worker run with two, by hogwild. Writes benchmarks/results/soak-kills.json.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import manyhands as mh
from campaign import (
    FEW,
    SMALL,
    faults_of,
    left_behind,
    names_in_memory,
    report,
    silent,
    wrong_with_counters,
    wrong_with_folder,
)
from manyhands.config import plans, presets
from manyhands.runs import schedule
from misbehaving import Diary, counting

RESULTS = Path(__file__).parent / "results" / "soak-kills.json"
WAYS = ("SIGKILL", "SIGSTOP and SIGKILL", "SIGSEGV", "SIGTERM")
DEADLY = WAYS[:3]
LONGEST_PAUSE_S = 1.5  # between two signals
OLD_S, MOST_YOUNG = 6.0, 3  # after its first progress; five quick deaths in a row end a run
PATIENCE_S = 120.0
LOOKS_PERIOD_S = 0.1
Cell = dict[str, Any]
Rank = tuple[str, int]


def recipes() -> list[str]:
    return presets.names("recipes")


def options_of(recipe: str) -> dict[str, Any]:
    """A small run of many processes."""
    two = {"workers": 2, "strategy": "hogwild"}
    plan = plans.from_options("cartpole", None, {"recipe": recipe})
    own = {name: values for name, values in SMALL.items() if name in plan.sections}
    return FEW | own | (two if plan.alone else {})


class Killer:
    """Sends signals each time the run reports."""

    def __init__(self, run: mh.Run, chance: random.Random) -> None:
        self._run, self._chance = run, chance
        self.sent: Counter[str] = Counter()
        self.killed: list[int] = []
        self._young: Counter[Rank] = Counter()
        self._born_at: dict[int, tuple[int, int]] = {}  # by pid: its rank's steps, all updates
        self._progress_s: dict[int, float] = {}  # by pid: when its first progress was seen
        self._next_s = 0.0
        self._stopped: list[tuple[float, int]] = []  # (when, pid) to kill

    def look(self, *, may_begin: bool) -> None:
        now_s = time.monotonic()
        for process in self._run.workers.process_table():
            self._note_progress(process, now_s)
        for due in [due for due in self._stopped if due[0] <= now_s]:
            self._stopped.remove(due)
            self._kill(due[1], signal.SIGKILL)
        if may_begin and now_s >= self._next_s:
            self._next_s = now_s + self._chance.uniform(0.0, LONGEST_PAUSE_S)
            self._strike(now_s)

    def _strike(self, now_s: float) -> None:
        waiting = [pid for _, pid in self._stopped]
        there = [
            w for w in self._run.workers.process_table() if w["pid"] and w["pid"] not in waiting
        ]
        there = [w for w in there if w["pid"] not in self.killed and self._may_die(w, now_s)]
        if not there:
            return
        unlucky, way = self._chance.choice(there), self._chance.choice(WAYS)
        if unlucky["role"] == "shard" and way == "SIGSTOP and SIGKILL":
            way = "SIGKILL"  # main waits for a stopped shard, and could not kill it then
        first = signal.SIGSTOP if way == "SIGSTOP and SIGKILL" else signal.Signals[way]
        if not self._kill(unlucky["pid"], first):
            return
        self.sent[way] += 1
        if way in DEADLY:
            young = not self._is_old(unlucky, now_s)
            rank = unlucky["role"], unlucky["id"]
            self._young[rank] = self._young[rank] + 1 if young else 0
        if first == signal.SIGSTOP:
            self._stopped.append((now_s + self._chance.uniform(0.0, 1.0), unlucky["pid"]))

    def _note_progress(self, process: dict[str, Any], now_s: float) -> None:
        """As the supervisor judges it: an actor steps, a learner or a shard makes updates."""
        at = int(process["agent_steps"]), int(self._run.workers.updates)
        steps, updates = self._born_at.setdefault(process["pid"], at)
        acts = process["role"] in ("worker", "actor")
        if at[0] > steps if acts else at[1] > updates:
            self._progress_s.setdefault(process["pid"], now_s)

    def _is_old(self, process: dict[str, Any], now_s: float) -> bool:
        since_s = self._progress_s.get(process["pid"])
        return since_s is not None and now_s - since_s > OLD_S

    def _may_die(self, process: dict[str, Any], now_s: float) -> bool:
        rank = process["role"], process["id"]
        return self._is_old(process, now_s) or self._young[rank] < MOST_YOUNG

    def _kill(self, pid: int, number: signal.Signals) -> bool:
        """Whether the process was still there: it may have died of another signal."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        if number in (signal.SIGKILL, signal.SIGSEGV):
            self.killed.append(pid)
        return True

    @property
    def done(self) -> bool:
        """All stopped processes are dead, and all deaths are reported."""
        known = str([row["cause"] for row in faults_of(self._run.path)])
        return not self._stopped and all(f"(pid {pid})" in known for pid in self.killed)


def case(recipe: str, seconds: float, seed: int) -> Cell:
    before, chance = names_in_memory(), random.Random(f"{seed} {recipe}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            with silent():
                cell = killed(recipe, seconds, folder, chance)
        except Exception as error:
            cell = {"wrong": [f"raised {type(error).__name__}: {error}"]}
        cell["wrong"] += left_behind(before, [])
    return cell


def killed(recipe: str, seconds: float, folder: Path, chance: random.Random) -> Cell:
    run = mh.Run(
        counting(folder), recipe=recipe, steps=10**9, seed=chance.randrange(2**31),
        out=folder / "run", **options_of(recipe),
    )  # fmt: skip
    killer, began_s, learned = Killer(run, chance), time.monotonic(), 0
    for _ in run:
        now_s = time.monotonic() - began_s
        killer.look(may_begin=now_s < seconds and bool(run.workers.agent_steps))
        if now_s < seconds or not killer.done:
            learned = run.workers.updates
        elif run.workers.updates > learned:  # all are back and it learns
            break
        if now_s > seconds + PATIENCE_S:
            return {"wrong": ["did not continue"], "sent": dict(killer.sent)}
    return judged(run, killer, folder)


def judged(run: mh.Run, killer: Killer, folder: Path) -> Cell:
    summary = run.summary
    actors = sum(row["cause"].startswith(("worker", "actor")) for row in faults_of(run.path))
    lost = FEW["envs_per_worker"] * actors
    wrong = wrong_with_counters(summary, Diary(folder), lost=lost)
    wrong += wrong_with_folder(run.path, "finished")
    rows, deaths = faults_of(run.path), len(killer.killed)
    if len(rows) != deaths:
        wrong.append(f"{len(rows)} faults are kept of {deaths} kills: {rows}")
    if summary["faults"]["restarts"] != deaths:
        wrong.append(f"{summary['faults']['restarts']} restarts instead of {deaths}")
    kept = ("agent_steps", "updates", "gradients", "episodes", "faults")
    return {"wrong": wrong, "sent": dict(killer.sent), **{name: summary[name] for name in kept}}


def campaign(names: list[str], seconds: float, seed: int) -> dict[str, Cell]:
    schedule.REPORT_PERIOD_S = LOOKS_PERIOD_S  # signals are sent when a report is made
    cells: dict[str, Cell] = {}
    for recipe in names:
        cells[recipe] = case(recipe, seconds, seed)
        print(f"{recipe}: {cells[recipe]}", file=sys.stderr, flush=True)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="minutes of kills, over all recipes"
    )
    parser.add_argument("--recipes", nargs="*", default=recipes())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    cells = campaign(asked.recipes, 60 * asked.minutes / len(asked.recipes), asked.seed)
    command = f"soak_kills.py --minutes {asked.minutes:g} --seed {asked.seed}"
    settings = {"minutes": asked.minutes, "seed": asked.seed}
    return report(asked.out, command, {"settings": settings, "cells": cells})


if __name__ == "__main__":
    sys.exit(main())
