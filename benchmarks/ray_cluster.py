"""Clusters of several nodes on this machine, and runs of the real command on them.

A cluster has its own token and one folder, and leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from speed import machine

RESULTS = Path(__file__).parent / "results"
STORE_BYTES = 80 << 20  # Ray's least is 75 MB
Row = dict[str, Any]


@contextmanager
def cluster(*cpus: int, store_bytes: int = STORE_BYTES) -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster` with a node for each number of CPUs; the first is the head."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # as our own Ray
    os.environ.pop("RAY_ADDRESS", None)
    from manyhands.backends.ray import calling_ray

    calling_ray.read_environment_again()
    from ray.cluster_utils import Cluster

    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray keeps the address there, whatever its folder
    with tempfile.TemporaryDirectory(prefix="mhb-", dir="/tmp", ignore_cleanup_errors=True) as home:
        made: Any = Cluster(shutdown_at_exit=False)
        how: Row = {"object_store_memory": store_bytes, "include_dashboard": False}
        try:
            made.add_node(num_cpus=cpus[0], temp_dir=home, **how)
            for number in cpus[1:]:
                made.add_node(num_cpus=number, **how)
            yield made
        finally:
            made.shutdown()


def add_node(cluster: Any, cpus: int) -> None:
    cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES)


class Training:
    """`manyhands train` on a cluster, as its files show it."""

    def __init__(self, words: str, address: str, out: Path) -> None:
        self.out, self.words = out, words
        how = f"--backend ray --ray.address {address} --quiet --out {out}"
        self.main = subprocess.Popen(
            [sys.executable, "-m", "manyhands", "train", *words.split(), *how.split()],
            stdin=subprocess.DEVNULL,
        )

    @property
    def status(self) -> Row:
        with suppress(FileNotFoundError):
            found: Row = json.loads((self.out / "status.json").read_text())
            return found
        return {"wall_s": -1.0, "agent_steps": 0, "updates": 0, "workers": []}

    @property
    def steps(self) -> int:
        return int(self.status["agent_steps"])

    def running(self, role: str) -> list[Row]:
        return [p for p in self.status["workers"] if p["role"] == role and p["pid"]]

    def away(self) -> list[Row]:
        """Actors that are not on the node of the learners."""
        here = {learner["node"] for learner in self.running("learner")}
        return [actor for actor in self.running("actor") if actor["node"] not in here]

    def causes(self) -> list[str]:
        file = self.out / "faults.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["cause"] for line in lines]

    def wait_for(self, condition: Callable[[], bool], *, most_s: float) -> float:
        """Seconds until it holds."""
        began_s = time.monotonic()
        while not condition():
            if self.main.poll() is not None:
                raise RuntimeError(f"manyhands train {self.words} ended: {self.main.returncode}")
            if time.monotonic() - began_s > most_s:
                raise RuntimeError(f"manyhands train {self.words}: {self.causes()}")
            time.sleep(0.05)
        return time.monotonic() - began_s

    def summary(self) -> Row:
        """When the run is over."""
        self.main.wait()
        found: Row = json.loads((self.out / "summary.json").read_text())
        return found

    def interrupt(self) -> None:
        self.main.send_signal(signal.SIGINT)
        self.main.wait(60)


@contextmanager
def training(words: str, address: str) -> Iterator[Training]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Training(words, address, Path(folder) / "run")
        try:
            yield made
        finally:
            made.main.kill()
            made.main.wait()


class Book:
    """A file of results by cell, written after each cell. A cell that is there is not repeated."""

    def __init__(self, name: str) -> None:
        self._path = RESULTS / f"{name}.json"
        self.cells: Row = json.loads(self._path.read_text()) if self._path.exists() else {}

    def __contains__(self, cell: str) -> bool:
        return cell in self.cells

    def keep(self, cell: str, **found: Any) -> None:
        from manyhands.runs import provenance

        command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        where = {"commit": provenance.commit(), "machine": machine(), "command": command}
        self.cells[cell] = {**where, **found}
        self._path.write_text(json.dumps(self.cells, indent=1) + "\n")
        print(cell, json.dumps(found), flush=True)
