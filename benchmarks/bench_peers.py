"""The same jobs by us and by other libraries, each in an environment of its own.

    make bench-peers                       continues where it was stopped
    make bench-peers MORE="--jobs lunarlander-dqn --sides ours jax"
    make bench-peers MORE=--fresh          forgets all cells first

A cell is one process: a job (`peers/jobs.py`) by one side (a file of `peers/`) with a number of
threads. One process runs at a time, and sides take turns. The first round tries one and two
threads; later rounds use the better number of that side. The clock starts after the warm-up, and
the time before it is reported separately. Writes benchmarks/results/peers.json after every cell.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PEERS, RESULTS = HERE / "peers", HERE / "results" / "peers.json"
sys.path.insert(0, str(PEERS))

from jobs import JOBS as JOBS  # noqa: E402

THREADS, LONGEST_S = (1, 2), 240.0
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_XLA_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
Cell = dict[str, Any]


class Side(NamedTuple):
    label: str
    environment: str  # .venv-peers-ENVIRONMENT and peers/ENVIRONMENT.txt; "": our own
    file: str
    jobs: tuple[str, ...]
    lacks: str = ""  # why there are no others


DQN = ("breakout-dqn", "lunarlander-dqn", "cartpole-dqn")
PPO = ("breakout-ppo", "lunarlander-ppo", "cartpole-ppo")
ALL, DENSE = tuple(JOBS), tuple(name for name, job in JOBS.items() if job.hidden)
DRIVER = "our driver for it has no convolutions"
SIDES = {
    "ours": Side("manyhands", "", "ours.py", ALL),
    "ours-float32": Side("manyhands, float32", "", "ours.py", ALL[:4], "the others are float32"),
    "sb3": Side("Stable-Baselines3", "sb3", "sb3.py", (*DQN, *PPO, "breakout-a2c"), "no PQN"),
    "sbx": Side("SBX", "sbx", "sbx_gym.py", (*DQN, *PPO), "no A2C, no PQN"),
    "sbx-envpool": Side(
        "SBX, EnvPool", "sbx", "sbx_envpool.py", ("breakout-dqn", *PPO), "one environment"
    ),
    "jax": Side("JAX loop in CleanRL's manner", "jax", "jax_loop.py", ALL),
    "tianshou": Side("Tianshou", "tianshou", "tianshou_loop.py", DENSE, DRIVER),
    "torchrl": Side("TorchRL", "torchrl", "torchrl_loop.py", DENSE, DRIVER),
    "rllib": Side("RLlib", "rllib", "rllib_loop.py", DENSE, DRIVER),
    "sample-factory": Side(
        "Sample Factory", "sample-factory", "sample_factory_loop.py",
        ("lunarlander-ppo", "cartpole-ppo"), "only PPO; " + DRIVER,
    ),
}  # fmt: skip


def python_of(side: Side) -> Path:
    folder = HERE.parent / f".venv-peers-{side.environment}"
    return folder / "bin" / "python" if side.environment else Path(sys.executable)


def measure(name: str, job: str, threads: int, seconds: float) -> Cell:
    """One process. A side that fails is a cell with the reason."""
    side = SIDES[name]
    if not python_of(side).exists():
        return {"error": "its environment could not be installed"}
    environment = {**os.environ, **dict.fromkeys(VARIABLES, str(threads))}
    environment |= {"XLA_FLAGS": ONE_XLA_THREAD} if threads == 1 else {}
    command = [str(python_of(side)), str(PEERS / side.file), job, str(threads), str(seconds)]
    command += [] if side.environment else [name]
    done = finished(command, environment, LONGEST_S + seconds)
    if done is None:
        return {"error": f"did not finish within {LONGEST_S + seconds:.0f} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"updates"'):
            return facts(json.loads(line), job)
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"error": last[:200]}


def finished(
    command: list[str], environment: dict[str, str], longest_s: float
) -> subprocess.CompletedProcess[str] | None:
    """Runs it in a session of its own, and kills what a library leaves running."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:  # a full pipe would block it
        started = subprocess.Popen(
            command, stdout=out, stderr=err, env=environment, start_new_session=True
        )
        try:
            code = started.wait(longest_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        texts = [file.read() for file in (out, err) if file.seek(0) == 0]
        return subprocess.CompletedProcess(command, code, *texts)


def facts(found: Cell, job: str) -> Cell:
    return {**found, "rate": found[JOBS[job].unit] / found["seconds"]}


def cells(jobs: list[str], sides: list[str], rounds: int) -> Iterator[tuple[str, str, int]]:
    """Job, side and round, in turns: every other round in reverse."""
    for number in range(rounds):
        for job in jobs:
            able = [name for name in sides if job in SIDES[name].jobs]
            for name in able[:: 1 if number % 2 == 0 else -1]:
                yield job, name, number


def key(job: str, side: str, threads: int, number: int) -> str:
    return f"{job} {side} {threads} {number}"


def best_threads(kept: dict[str, Cell], job: str, side: str) -> int:
    rates = {n: kept.get(key(job, side, n, 0), {}).get("rate", 0.0) for n in THREADS}
    return max(rates, key=lambda n: rates[n])


def rates_of(kept: dict[str, Cell], job: str, side: str) -> list[float]:
    """Of every round, with the side's best number of threads."""
    threads = best_threads(kept, job, side)
    found = (kept.get(key(job, side, threads, number), {}) for number in range(100))
    return [cell["rate"] for cell in found if "rate" in cell]


def summary(kept: dict[str, Cell], job: str) -> str:
    rows = {name: rates_of(kept, job, name) for name in SIDES}
    shown = (f"{name} {median(rates):,.0f}" for name, rates in rows.items() if rates)
    return f"{job} ({JOBS[job].unit}/s): {', '.join(shown)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--within-minutes", type=float, default=1e9)
    parser.add_argument("--fresh", action="store_true", help="forget the cells of before")
    parser.add_argument("--again", action="store_true", help="repeat cells that failed")
    given = parser.parse_args()
    from manyhands.runs import provenance
    from speed import machine

    before = json.loads(RESULTS.read_text()) if RESULTS.exists() and not given.fresh else {}
    kept: dict[str, Cell] = before.get("cells", {})
    ends_s = time.monotonic() + 60 * given.within_minutes
    about = {"command": "make bench-peers", "commit": provenance.commit(), "machine": machine()}
    for job, side, number in cells(given.jobs, given.sides, given.rounds):
        for threads in THREADS if number == 0 else (best_threads(kept, job, side),):
            name = key(job, side, threads, number)
            if name in kept and not (given.again and "error" in kept[name]):
                continue
            if time.monotonic() > ends_s:
                print("time is over; the same command continues")
                return
            kept[name] = {**measure(side, job, threads, given.seconds), "commit": about["commit"]}
            RESULTS.write_text(json.dumps({**about, "cells": kept}, indent=1) + "\n")
            shown = kept[name].get("rate") or kept[name]["error"]
            print(f"{name:40} {shown if isinstance(shown, str) else f'{shown:,.1f}'}", flush=True)
    for job in given.jobs:
        print(summary(kept, job))


if __name__ == "__main__":
    main()
