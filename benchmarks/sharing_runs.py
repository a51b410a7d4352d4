"""Measures several runs of the real command in turn: one runs while the others are stopped.

No run has to start again between two measurements, and one run serves for any number of workers.
Rates come from two versions of status.json, after all workers have started and updates are made.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sharing import Book, Cell, Row

STEPPING_ROLES = ("worker", "actor")  # roles that step environments
START_S = 400.0  # 32 processes that import torch take long on two cores
SETTLE_S = 0.5  # after some were stopped and others continued
WINDOW_S, SMOKE_WINDOW_S = 3.0, 1.0
LOOK_S = 0.05
COMMON = "--minutes 120 --quiet --evaluation.period-steps 0 --checkpoint.replay false"


class Trial:
    """A run in its own process group."""

    def __init__(self, words: str, path: Path) -> None:
        self.words, self.path = words, path
        command = f"-m manyhands train {words} {COMMON} --out {path}"
        self.process = subprocess.Popen(
            [sys.executable, *command.split()], stdin=subprocess.DEVNULL, start_new_session=True
        )

    def status(self) -> Row:
        """The newest status; empty before the first."""
        if self.process.poll() is not None:
            raise RuntimeError(f"manyhands train {self.words}: exit code {self.process.returncode}")
        with suppress(FileNotFoundError):
            status: Row = json.loads((self.path / "status.json").read_text())
            return status
        return {"wall_s": -1.0, "updates": 0, "workers": []}

    def stepping(self) -> list[Row]:
        return [
            worker
            for worker in self.status()["workers"]
            if worker["role"] in STEPPING_ROLES and worker["pid"]
        ]

    def await_all(self, count: int, steps_each: int) -> None:
        """Waits until every worker has stepped and an update was made."""
        deadline = time.monotonic() + START_S
        while not (
            self.status()["updates"]
            and len(self.stepping()) == count
            and all(worker["agent_steps"] >= steps_each for worker in self.stepping())
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"manyhands train {self.words}: not all have started")
            time.sleep(LOOK_S)

    def rest(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def wake(self, count: int) -> None:
        """Continues the run with its first `count` workers."""
        pids = [worker["pid"] for worker in self.stepping()]
        for pid in pids[count:]:
            os.kill(pid, signal.SIGSTOP)
        resting = set(pids[count:])
        for pid in {self.process.pid, *_group(self.process.pid)} - resting:
            os.kill(pid, signal.SIGCONT)

    def rates(self, seconds: float) -> Row:
        time.sleep(SETTLE_S)
        first = self._next_status()
        time.sleep(seconds)
        last = self._next_status()
        passed_s = last["wall_s"] - first["wall_s"]
        before = {
            worker["id"]: worker["agent_steps"]
            for worker in first["workers"]
            if worker["role"] in STEPPING_ROLES
        }
        steps = [
            worker["agent_steps"] - before[worker["id"]]
            for worker in last["workers"]
            if worker["id"] in before and worker["role"] in STEPPING_ROLES
        ]
        return {
            "updates_per_s": (last["updates"] - first["updates"]) / passed_s,
            "agent_steps_per_s": (last["agent_steps"] - first["agent_steps"]) / passed_s,
            "steps_of_each": steps,
        }

    def _next_status(self) -> Row:
        before, deadline = self.status()["wall_s"], time.monotonic() + START_S
        while (status := self.status())["wall_s"] == before:
            if time.monotonic() > deadline:
                raise RuntimeError(f"manyhands train {self.words}: no new status")
            time.sleep(LOOK_S)
        return status

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _group(group: int) -> Iterator[int]:
    """The processes of a group."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(ProcessLookupError):
                if os.getpgid(int(folder.name)) == group:
                    yield int(folder.name)


@contextmanager
def started(words: str, *, count: int, steps_each: int) -> Iterator[Trial]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trial = Trial(words, Path(folder) / "run")
        try:
            trial.await_all(count, steps_each)
            yield trial
        finally:
            trial.end()


# --- Two workers on two cores ---------------------------------------------------------------------

GOAL_TWO_WORKERS = 1.7
TURNS = 3  # in a round: other load lasts for seconds
WARMUP_STEPS = 1_000
SMALL = f"--dqn.warmup-steps {WARMUP_STEPS} --memory.capacity 20000"
NETWORKS = {
    "mlp": f"lunarlander {SMALL}",  # 256 x 256, batch 128, one update per 4 steps: the task's own
    "nature": f"breakout {SMALL} --dqn.batch-size 32 --dqn.steps-per-update 4 "
    "--network.channels 32,64,64 --network.hidden 512 --network.precision float32",
}
CREWS = {
    "serial, one thread": "--recipe dqn --threads 1",
    "serial, two threads": "--recipe dqn --threads 2",
    "hogwild": "--recipe hogwild --workers 2 --threads 1",
    "parameter_server": "--recipe downpour --workers 2 --threads 1",
    "gossip": "--recipe ad-psgd --workers 2 --threads 1",
}
SHARED = ("hogwild", "parameter_server", "gossip")
STOPPABLE = ("hogwild", "parameter_server")  # a stopped gossip worker may hold the other's lock


def workers(book: Book) -> None:
    for network, words in NETWORKS.items():
        cell = book.begin("workers", network, run=words, crews=CREWS, goal=GOAL_TWO_WORKERS)
        if not cell.complete:
            with ExitStack() as stack:
                trials = {
                    name: _resting(stack, f"{words} {workers}") for name, workers in CREWS.items()
                }
                for number in cell.to_do():
                    cell.add(_round_of_crews(trials, _seconds(book), backwards=number % 2 == 1))
        _conclude_workers(cell)


def _resting(stack: ExitStack, words: str) -> Trial:
    count = 2 if "--workers 2" in words else 1
    steps_each = 2 * WARMUP_STEPS // count
    trial = stack.enter_context(started(words, count=count, steps_each=steps_each))
    trial.rest()
    return trial


def _round_of_crews(trials: dict[str, Trial], seconds: float, *, backwards: bool) -> Row:
    """Updates per second of each run, and of stoppable runs with one of two workers stopped."""
    turns = [(name, 2) for name in trials] + [(name, 1) for name in STOPPABLE]
    rates: dict[str, list[float]] = {}
    for name, count in TURNS * (turns[::-1] if backwards else turns):
        trials[name].wake(count)
        found = trials[name].rates(seconds / TURNS)
        trials[name].rest()
        cell = name if count == 2 else f"{name}, one worker"
        rates.setdefault(cell, []).append(found["updates_per_s"])
    row: Row = {name: round(statistics.mean(found), 2) for name, found in rates.items()}
    for name in SHARED:
        for other in ("serial, one thread", "serial, two threads", f"{name}, one worker"):
            if other in row:
                row[f"{name} / {other}"] = round(row[name] / row[other], 3)
    return row


def _conclude_workers(cell: Cell) -> None:
    """Compares with one worker of the same strategy, or with serial if none can be stopped."""
    found = cell.kept["median"]
    serial = {name: found[f"{name} / serial, one thread"] for name in SHARED}
    one = {name: found.get(f"{name} / {name}, one worker", serial[name]) for name in SHARED}
    cell.conclude(
        times_one_worker_with_one_thread=one,
        times_serial_with_one_thread=serial,
        times_serial_with_two_threads={n: found[f"{n} / serial, two threads"] for n in SHARED},
        goal_met={name: ratio >= GOAL_TWO_WORKERS for name, ratio in one.items()},
    )


# --- An environment that waits --------------------------------------------------------------------

GOALS_WAITING = {16: 14.0, 32: 24.0}
GOALS_OF = {name: {16: 14.0} for name in ("ad-psgd", "apex", "impala")} | {"sync": {16: 12.0}}
STOPPED_TOGETHER = ("sync", "ad-psgd")  # stopping one may stop the others
LARGEST_SPREAD = 0.2  # between the workers' episodes
EPISODE_STEPS = 10  # of toy/slow, always
BATCH = 32


def waiting(book: Book, recipes: list[str]) -> None:
    for recipe in recipes:
        goals = GOALS_OF.get(recipe, GOALS_WAITING)
        counts = (1, 2) if book.smoke else (1, *goals)
        words = _waiting_words(recipe, max(counts))
        cell = book.begin("waiting", recipe, run=words, goals=goals)
        if not cell.complete:
            with ExitStack() as stack:
                trials = _trials(stack, recipe, counts)
                for number in cell.to_do():
                    order = counts[::-1] if number % 2 else counts
                    cell.add(_round_of_counts(trials, order, _seconds(book)))
        _conclude_waiting(cell, goals, max(counts))


def _trials(stack: ExitStack, recipe: str, counts: tuple[int, ...]) -> dict[int, Trial]:
    """The run for every number of workers: one run for all, or one for each."""
    sizes = counts if recipe in STOPPED_TOGETHER else (max(counts),)
    trials = {}
    for size in sizes:
        words = _waiting_words(recipe, size)
        trials[size] = stack.enter_context(started(words, count=size, steps_each=4 * BATCH))
        trials[size].rest()
    return {count: trials.get(count, trials[max(sizes)]) for count in counts}


def _waiting_words(recipe: str, count: int) -> str:
    """One update with 32 steps for every 32 steps."""
    learning = (
        f"--impala.rollout-steps {BATCH}"
        if recipe == "impala"
        else f"--dqn.batch-size {BATCH} --dqn.steps-per-update {BATCH} "
        f"--dqn.warmup-steps {2 * BATCH * count} --memory.capacity {1000 * count}"
    )
    return (
        f"toy/slow --recipe {recipe} --workers {count} --envs-per-worker 1 --threads 1 {learning}"
    )


def _round_of_counts(trials: dict[int, Trial], counts: tuple[int, ...], seconds: float) -> Row:
    """Agent steps per second with `count` workers, the others stopped. Never longer than a round,
    or the supervisor would take them for hung."""
    rates, steps = {}, []
    for count in counts:
        trials[count].wake(count)
        found = trials[count].rates(seconds)
        trials[count].rest()
        rates[count] = round(found["agent_steps_per_s"], 1)
        if count == max(counts):
            steps = found["steps_of_each"]
    return {
        "agent_steps_per_s": {str(count): rates[count] for count in sorted(rates)},
        "times_one": {str(n): round(rates[n] / rates[1], 2) for n in sorted(rates) if n > 1},
        "steps_of_each": steps,
    }


def _conclude_waiting(cell: Cell, goals: dict[int, float], most: int) -> None:
    times = cell.kept["median"]["times_one"]
    episodes = [
        sum(steps) / EPISODE_STEPS
        for steps in zip(*(row["steps_of_each"] for row in cell.rows), strict=True)
    ]
    spread = max(episodes) / max(1e-9, min(episodes)) - 1
    cell.conclude(
        times_one=times,
        goals_met={n: times[str(n)] >= goal for n, goal in goals.items() if n <= most},
        episodes_of_a_worker={"least": min(episodes), "most": max(episodes)},
        spread=round(spread, 3),
        spread_met=spread <= LARGEST_SPREAD,
    )


def _seconds(book: Book) -> float:
    return SMOKE_WINDOW_S if book.smoke else WINDOW_S
