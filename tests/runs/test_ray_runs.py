"""Runs with the backend ray on one node: the same numbers, faults and files as with processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import manyhands as mh
from manyhands.backends import ray as backend
from support.small_runs import FAULTY, SHARED, assert_equal

pytestmark = pytest.mark.ray
LONG_S = 100.0
MARKER = "MANYHANDS_TEST_OF_TRACES"


@pytest.fixture
def on_ray(local_ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs use the local Ray of all tests. A Ray of their own takes seconds to start."""
    monkeypatch.setattr(backend, "make", partial(backend.Ray, cluster=local_ray))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def train(out: Path, **options: Any) -> mh.Run:
    run = mh.Run("cartpole", out=out, **{**SHARED, **options})
    run.finish()
    return run


@pytest.mark.usefixtures("on_ray")
def test_sync_on_ray_has_the_bits_of_processes(tmp_path: Path) -> None:
    how: dict[str, Any] = {"strategy": "allreduce", "workers": 2, "steps": 400}
    here = train(tmp_path / "processes", backend="processes", **how)
    there = train(tmp_path / "ray", backend="ray", **how)
    assert_equal(here, there)
    assert here.summary["agent_steps"] == there.summary["agent_steps"] == 400
    assert there.summary["backend"] == "ray"


@pytest.mark.usefixtures("on_ray")
def test_a_run_goes_from_processes_to_ray_and_back(tmp_path: Path) -> None:
    how: dict[str, Any] = {"actors": 1, "learners": 1, "steps": 300}
    train(tmp_path, backend="processes", **how)
    for steps, where in ((600, "ray"), (900, "processes")):
        run = mh.Run.resumed(tmp_path, steps=steps, backend=where)
        before = run.workers.updates
        run.finish()
        assert steps <= run.summary["agent_steps"] <= steps + 2 * SHARED["envs_per_worker"]
        assert run.summary["updates"] > before > 0
        assert run.summary["backend"] == where
    assert len(run.evaluate(episodes=2).scores) == 2


def wait_for(run: Any, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        next(run)
        assert time.monotonic() < deadline


@pytest.mark.usefixtures("on_ray", "_looks_often")
def test_a_killed_worker_and_node_runner_are_replaced(tmp_path: Path) -> None:
    """The memory is main's, so nothing is lost but what the processes themselves held."""
    how = {"strategy": "parameter_server", "workers": 2, "steps": 10**9, "backend": "ray"}
    run = mh.Run("cartpole", out=tmp_path / "run", **{**FAULTY, **how})
    running: Any = iter(run)

    def status() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read(run.path / "status.json")["workers"]
        return found

    wait_for(running, lambda: run.workers.updates > 50)
    assert {process["node"] for process in status()} == {"127.0.0.1"}
    first = next(process for process in status() if process["role"] == "worker")
    os.kill(first["pid"], signal.SIGKILL)
    wait_for(running, lambda: run.workers.processes.restarts == 1)
    before = run.workers.updates
    wait_for(running, lambda: run.workers.updates > before + 50)
    steps = run.workers.agent_steps
    shard = next(process for process in status() if process["role"] == "shard")
    node_runner = psutil.Process(shard["pid"]).ppid()
    os.kill(node_runner, signal.SIGKILL)
    wait_for(
        running, lambda: run.workers.processes.restarts == 3
    )  # the other worker has not died before
    before = run.workers.updates
    wait_for(running, lambda: run.workers.updates > before + 50)
    assert run.workers.agent_steps > steps
    assert [p["incarnation"] for p in status() if p["role"] == "worker"] == [2, 1]
    assert [p["incarnation"] for p in status() if p["role"] == "shard"] == [1]
    running.close()
    assert not psutil.pid_exists(node_runner)
    assert run.summary["faults"]["restarts"] == 3


# --- A Ray of the run's own -----------------------------------------------------------------------


def start(out: Path, name: str, steps: int) -> subprocess.Popen[bytes]:
    words = ["train", "cartpole", "--recipe", "hogwild", "--workers", "2", "--backend", "ray"]
    words += ["--steps", str(steps), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "manyhands", *words],
        env={**os.environ, MARKER: name},
        stdout=subprocess.DEVNULL,
    )


def marked(name: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == name:
                found.append(process)
        except psutil.Error:
            continue
    return found


def folders() -> set[Path]:
    return {*Path("/tmp").glob("mh-ray-*"), *Path("/dev/shm").glob("*")}


@pytest.mark.parametrize("end", [pytest.param("finishes", marks=pytest.mark.slow), "is killed"])
def test_a_ray_of_its_own_leaves_nothing(tmp_path: Path, end: str) -> None:
    before, name = folders(), f"{os.getpid()} {end}"
    main = start(tmp_path / "run", name, 300 if end == "finishes" else 10**9)
    if end == "finishes":
        assert main.wait(LONG_S) == 0
        assert read(tmp_path / "run" / "summary.json")["agent_steps"] >= 300
        assert folders() <= before
    else:
        deadline = time.monotonic() + LONG_S
        status = tmp_path / "run" / "status.json"
        while not (status.exists() and read(status)["updates"]):
            assert time.monotonic() < deadline
            assert main.poll() is None
            time.sleep(0.2)
        main.kill()
        main.wait()
    deadline = time.monotonic() + 20
    while (marked(name) or not folders() <= before) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert marked(name) == []
    assert folders() <= before
