"""Ray against processes on one machine: agent steps and updates per second, interleaved.

    python benchmarks/ray_speed.py [--seconds 6] [--pairs 5] [CASE …]

Both runs of a case are started once. Then they take turns: one trains while all processes of the
other are stopped, Ray's too. A round measures each once; which is first alternates. Writes
benchmarks/results/ray-speed.json after every case.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from ray_cluster import Book, Row

GOAL = 0.90
SOON = "--dqn.warmup-steps 1000"
CASES = {
    "hogwild": "lunarlander --recipe hogwild --workers 2",
    "downpour": "lunarlander --recipe downpour --workers 2",
    "sync": "lunarlander --recipe sync --workers 2",
    "ad-psgd": "lunarlander --recipe ad-psgd --workers 2",
    "distributed-dqn": f"breakout --recipe distributed-dqn --actors 2 {SOON}",
    "apex": f"breakout --recipe apex --actors 2 {SOON}",
    "impala": "breakout --recipe impala --actors 2",
}
ALL = (
    "--minutes 30 --quiet --hang-s 900 --evaluation.period-steps 0 --checkpoint.replay false "
    "--memory.capacity 50000"
)
BACKENDS = ("processes", "ray")
Commands = dict[str, list[str]]  # by arm: what starts a run, without --out
START_S, SETTLE_S, LOOK_S, END_S = 90.0, 1.0, 0.02, 20.0
WARM_UPDATES = 100


class Trial:
    """A run: main, and all processes below it. Ray's are there too."""

    def __init__(self, command: list[str], out: Path) -> None:
        self._words, self._out = " ".join(command), out
        self._main = subprocess.Popen([*command, "--out", str(out)], stdin=subprocess.DEVNULL)

    def status(self) -> Row:
        if self._main.poll() is not None:
            raise RuntimeError(f"{self._words}: ended")
        with suppress(FileNotFoundError):
            found: Row = json.loads((self._out / "status.json").read_text())
            return found
        return {"wall_s": -1.0, "updates": 0}

    def begin(self) -> None:
        deadline = time.monotonic() + START_S
        while self.status()["updates"] < WARM_UPDATES:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._words}: it has not started")
            time.sleep(LOOK_S)

    def signal(self, number: int) -> None:
        """Main first: it is not to take what is stopped for silent."""
        main = psutil.Process(self._main.pid)
        for process in (main, *main.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def rates(self, seconds: float) -> Row:
        self.signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        first = self._next_status()
        time.sleep(seconds)
        last = self._next_status()
        self.signal(signal.SIGSTOP)
        passed_s = last["wall_s"] - first["wall_s"]
        names = ("agent_steps", "updates")
        return {f"{n}_per_s": round((last[n] - first[n]) / passed_s, 1) for n in names}

    def _next_status(self) -> Row:
        before, deadline = self.status()["wall_s"], time.monotonic() + START_S
        while (status := self.status())["wall_s"] == before:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._words}: no new status")
            time.sleep(LOOK_S)
        return status

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self._main.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._main.wait(END_S)
        self._main.kill()
        self._main.wait()


def commands(words: str) -> Commands:
    train = [sys.executable, "-m", "manyhands", "train", *words.split(), *ALL.split()]
    return {backend: [*train, "--backend", backend] for backend in BACKENDS}


@contextmanager
def started(arms: Commands) -> Iterator[dict[str, Trial]]:
    """Both runs, stopped, after each has begun to learn."""
    made: dict[str, Trial] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            for number, (arm, command) in enumerate(arms.items()):
                made[arm] = Trial(command, Path(folder) / str(number))
                made[arm].begin()
                made[arm].signal(signal.SIGSTOP)
            yield made
        finally:
            for trial in made.values():
                trial.end()


def measure(words: str, arms: Commands, pairs: int, seconds: float, *, goal: float) -> Row:
    """The ratio is that of the second arm to the first."""
    rounds: list[Row] = []
    names = tuple(arms)
    with started(arms) as trials:
        for number in range(pairs):
            order = names if number % 2 == 0 else names[::-1]
            rounds.append({name: trials[name].rates(seconds) for name in order})
            print(rounds[-1], flush=True)
    found: Row = {"run": f"manyhands train {words}", "rounds": rounds}
    for rate in ("agent_steps_per_s", "updates_per_s"):
        for name in names:
            found.setdefault(name, {})[rate] = statistics.median(row[name][rate] for row in rounds)
        ratios = [row[names[1]][rate] / row[names[0]][rate] for row in rounds]
        found.setdefault("ratio", {})[rate] = round(statistics.median(ratios), 3)
    return {**found, "goal": goal, "goal_met": min(found["ratio"].values()) >= goal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    book = Book("ray-speed")
    for case in given.cases or [case for case in CASES if case not in book]:
        load = os.getloadavg()[0]
        words = CASES[case]
        found = measure(words, commands(words), given.pairs, given.seconds, goal=GOAL)
        book.keep(case, load_before=load, **found)


if __name__ == "__main__":
    main()
