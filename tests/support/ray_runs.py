"""Runs of the command on a cluster, as their files show them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

LONG_S = 150.0


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


class Started:
    """A run of the command, as its files show it."""

    def __init__(self, cluster: Any, out: Path, *more: str) -> None:
        words = ["train", "cartpole", "--backend", "ray", "--ray.address", cluster.address]
        words += ["--out", str(out), "--evaluation.period-steps", "0", *more]
        self.out, self._log = out, out.with_suffix(".log")
        with self._log.open("wb") as log:
            words = [sys.executable, "-m", "manyhands", *words]
            self.main = subprocess.Popen(words, stdout=log, stderr=log)

    @property
    def status(self) -> dict[str, Any]:
        return read(self.out / "status.json")

    @property
    def steps(self) -> int:
        return int(self.status.get("agent_steps", 0))

    def running(self, role: str) -> list[dict[str, Any]]:
        return [p for p in self.status.get("workers", []) if p["role"] == role and p["pid"]]

    def away(self) -> list[dict[str, Any]]:
        """Actors or workers that are not on main's node."""
        first = [one for one in self.running("worker") if one["id"] == 0]
        here = {one["node"] for one in self.running("learner") + first}
        moving = self.running("actor") + self.running("worker")
        return [one for one in moving if here and one["node"] not in here]

    def incarnations_away(self) -> list[int]:
        return sorted(actor["incarnation"] for actor in self.away())

    def node_runner(self) -> psutil.Process:
        return psutil.Process(psutil.Process(self.away()[0]["pid"]).ppid())

    @property
    def environments(self) -> int:
        values = read(self.out / "config.json")["config"]["run"]
        acting = int(values["actors"]) or int(values["workers"])
        return acting * int(values["envs_per_worker"])

    def causes(self) -> list[str]:
        file = self.out / "faults.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["cause"] for line in lines]

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        while not condition():
            assert self.main.poll() is None, self._log.read_text()[-3000:]
            waited_s = time.monotonic() - began_s
            assert waited_s < LONG_S, (what, self.causes(), self._log.read_text()[-3000:])
            time.sleep(0.1)
        print(f"{what}: {time.monotonic() - began_s:.1f} s")  # shown by pytest -s

    def wait_for_steps(self) -> None:
        before = self.steps
        self.wait_for("500 more steps", lambda: self.steps > before + 500)


@contextmanager
def started(cluster: Any, out: Path, *more: str) -> Iterator[Started]:
    run = Started(cluster, out, *more)
    try:
        yield run
        run.main.send_signal(signal.SIGINT)
        assert run.main.wait(LONG_S) == 130
        assert run.status["state"] == "interrupted"
    finally:
        run.main.kill()
        run.main.wait()
