"""How fast each task's default trains beside one other busy process, and against another commit.

    make bench-busy                                      all tasks, beside one busy loop
    python benchmarks/busy.py --before ../other/src      also against another checkout's code
    python benchmarks/busy.py --quiet-only --before ../other/src --tasks small --out …
                                                         small networks with one thread

Each round runs the real command once in every condition, one after the other. The ratios are
medians over the rounds. Writes benchmarks/results/busy.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from manyhands.runs import provenance
from speed import machine

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "busy.json"
# Each takes about ten seconds on two cores.
TASKS = {
    "breakout": "breakout --steps 20000",
    "breakout dqn": "breakout --recipe dqn --steps 8000 --dqn.warmup-steps 2000",
    "pong": "pong --steps 20000",
    "lunarlander": "lunarlander --steps 40000",
    "cartpole": "cartpole --steps 20000",
    "snake": "snake --steps 60000",
}
# Small networks, where the calls between the arithmetic are the cost. One thread.
AN_UPDATE_A_STEP = "--envs-per-worker 1 --threads 1 {0}.steps-per-update 1 {0}.warmup-steps 1000"
SMALL = {
    "lunarlander dqn, 256x256, batch 128": "lunarlander --recipe dqn --steps 8000 "
    "--dqn.batch-size 128 --network.hidden 256,256 --dqn.n-step 1 --dqn.double false "
    + AN_UPDATE_A_STEP.format("--dqn"),
    "cartpole dqn, 128x128, batch 64": "cartpole --recipe dqn --steps 15000 --dqn.batch-size 64 "
    "--network.hidden 128,128 --dqn.n-step 1 " + AN_UPDATE_A_STEP.format("--dqn"),
    "cartpole double-q, 128x128, batch 64": "cartpole --recipe double-q --steps 12000 "
    "--double-q.batch-size 64 --network.hidden 128,128 " + AN_UPDATE_A_STEP.format("--double-q"),
    "cartpole ppo": "cartpole --recipe ppo --steps 60000 --threads 1",
    "cartpole paac": "cartpole --recipe paac --steps 60000 --threads 1",
    "cartpole pqn": "cartpole --recipe pqn --steps 100000 --threads 1",
}
COMMON = "--quiet --evaluation.period-steps 0 --checkpoint.replay false"
LEAST_BUSY = 0.45  # of the quiet speed: a fair share of two cores would be two thirds
LEAST_QUIET = 0.98  # of the commit before


def steps_per_s(words: str, source: Path) -> float:
    """Agent steps per second from the run's summary, start excluded."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = f"-m manyhands train {words} {COMMON} --out {out}"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run([sys.executable, *command.split()], check=True, env=environment)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return float(summary["agent_steps_per_s"])


@contextmanager
def busy_loop(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def measure(
    words: str, before: Path | None, rounds: int, *, quiet_only: bool = False
) -> dict[str, Any]:
    conditions = {"quiet": (HERE.parent / "src", False)}
    if not quiet_only:
        conditions["busy"] = (HERE.parent / "src", True)
    if before is not None:
        conditions["before, quiet"] = (before, False)
    rates: dict[str, list[float]] = {name: [] for name in conditions}
    for number in range(rounds):
        order = list(conditions)[:: 1 if number % 2 == 0 else -1]
        for name in order:
            source, is_busy = conditions[name]
            with busy_loop(is_busy):
                rates[name].append(round(steps_per_s(words, source), 1))
    ratios = {"busy / quiet": ("busy", "quiet"), "quiet / before": ("quiet", "before, quiet")}
    found = {
        name: round(statistics.median(a / b for a, b in zip(rates[x], rates[y], strict=True)), 3)
        for name, (x, y) in ratios.items()
        if x in rates and y in rates
    }
    return {"command": f"manyhands train {words} {COMMON}", "agent steps/s": rates, **found}


def commit_of(source: Path) -> str:
    """The name of its folder, if git does not know it."""
    asked = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return found or source.parent.name


def command(words: list[str]) -> str:
    """The whole command, as it was typed."""
    return shlex.join(["python", "benchmarks/busy.py", *words])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src folder of another checkout")
    parser.add_argument("--quiet-only", action="store_true", help="no busy loop")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--tasks", nargs="*", default=list(TASKS), choices=[*TASKS, *SMALL, "small"]
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    known = json.loads(asked.out.read_text())["tasks"] if asked.out.exists() else {}
    typed = command(sys.argv[1:])
    jobs = {**TASKS, **SMALL}
    for task in SMALL if asked.tasks == ["small"] else asked.tasks:
        known[task] = measure(jobs[task], asked.before, asked.rounds, quiet_only=asked.quiet_only)
        known[task] |= {"commit": provenance.commit(), "measured by": typed}
        if asked.before is not None:
            known[task]["before"] = commit_of(asked.before)
        print(f"{task}: {json.dumps(known[task])}", flush=True)
        found = {"command": typed, "commit": provenance.commit(), "machine": machine()}
        found |= {"date": date.today().isoformat()}
        bars = {"busy / quiet": LEAST_BUSY, "quiet / before": LEAST_QUIET}
        asked.out.write_text(json.dumps({**found, "bars": bars, "tasks": known}, indent=1) + "\n")


if __name__ == "__main__":
    main()
