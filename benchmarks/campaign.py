"""Checks that every run of the two campaigns must pass."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import manyhands as mh
from manyhands.runs import checkpoint, provenance, rundir
from misbehaving import EPISODE, STEP, Diary
from speed import machine

SMALL: dict[str, Any] = {
    "dqn": {"warmup_steps": 100, "batch_size": 16, "steps_per_update": 2},
    "memory": {"capacity": 2000},
    "network": {"hidden": (64,)},
    "evaluation": {"period_steps": 0},
}
FEW: dict[str, Any] = {"envs_per_worker": 2, "threads": 1, "quiet": True}
SUMMARY = {
    "task", "recipe", "algorithm", "strategy", "agent_steps", "updates", "gradients", "episodes",
    "wall_s", "faults", "staleness", "time_split", "bottleneck", "peak_pss_mb",
}  # fmt: skip
GONE_S = 20.0


def faults_of(run: Path) -> list[dict[str, Any]]:
    path = run / "faults.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def wrong_with_counters(summary: dict[str, Any], diary: Diary, *, lost: int = 0) -> list[str]:
    """`lost`: steps and episode ends that a worker could not count because it died."""
    found = []
    steps, episodes = diary.count(STEP), diary.count(EPISODE)
    if not steps - lost <= summary["agent_steps"] <= steps:
        found.append(f"{summary['agent_steps']} agent steps counted, {steps} made")
    if not episodes - lost <= summary["episodes"] <= episodes:
        found.append(f"{summary['episodes']} episodes counted, {episodes} ended")
    if summary["updates"] > summary["gradients"]:
        found.append(f"{summary['updates']} updates of {summary['gradients']} gradients")
    if missing := SUMMARY - summary.keys():
        found.append(f"the summary lacks {sorted(missing)}")
    return found


def wrong_with_folder(run: Path, state: str) -> list[str]:
    found, path = [], run / "status.json"
    told = json.loads(path.read_text())["state"] if path.is_file() else "training"  # not yet said
    if told != state:
        found.append(f"status.json says {told}, not {state}")
    if state == "finished" and not (run / "summary.json").is_file():
        found.append("no summary.json")
    if state == "finished":
        kept = checkpoint.newest(run / "checkpoints").weights
        if not kept or not all(np.isfinite(array).all() for array in kept.values()):
            found.append("no good checkpoint")
    try:
        folder = rundir.RunDir(run)
        folder.claim()
        folder.let_go()
    except mh.BadRequest as refusal:
        found.append(refusal.what)
    return found


def left_behind(before: set[str], ours: list[int]) -> list[str]:
    """Processes (not those that environments started) and names in shared memory."""
    until_s = time.monotonic() + GONE_S
    while (left := _children(ours)) and time.monotonic() < until_s:
        time.sleep(0.05)
    found = [f"process {child.pid} is left" for child in left]
    return found + [f"/dev/shm/{name} is left" for name in sorted(names_in_memory() - before)]


def _children(ours: list[int]) -> list[psutil.Process]:
    return [c for c in psutil.Process().children(recursive=True) if c.pid not in ours]


def names_in_memory() -> set[str]:
    """This user's shared memory and semaphores, by the names that libraries give them."""
    found = set()
    for path in Path("/dev/shm").glob("*"):
        with suppress(OSError):
            ours = path.stat().st_uid == os.getuid() and path.is_file()
            if ours and path.name.startswith(("manyhands", "torch_", "psm_", "sem.")):
                found.add(path.name)
    return found


def end(helpers: list[int]) -> None:
    """Ends the processes that environments left behind."""
    for pid in helpers:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with suppress(OSError):  # we cannot wait for a worker's children
            os.waitpid(pid, 0)


@contextmanager
def silent() -> Iterator[None]:
    """Discards what environments print."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def report(out: Path | None, command: str, content: dict[str, Any]) -> int:
    """Writes the results, prints one line, and returns the exit code."""
    whole: dict[str, Any] = {"machine": machine(), "commit": provenance.commit()}
    whole |= {"date": time.strftime("%Y-%m-%d"), "command": f"python benchmarks/{command}"}
    whole |= content
    if out is not None:
        out.write_text(json.dumps(whole, indent=1) + "\n")
    wrong = {name: cell["wrong"] for name, cell in content["cells"].items() if cell["wrong"]}
    for name, found in wrong.items():
        print(f"{name}: {'; '.join(found)}")
    print(f"{len(content['cells'])} runs, {len(wrong)} of them wrong")
    return 1 if wrong else 0
