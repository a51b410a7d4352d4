"""What is promised when things break, with real processes, as a run shows it."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import manyhands as mh
from manyhands.runs import checkpoint
from manyhands.runs.rundir import RunDir
from support.command_line import SMALL_SECTIONS, call, start
from support.small_runs import FAULTY as SMALL

LONG_S = 100.0
Capture = pytest.CaptureFixture[str]


def faults(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "faults.jsonl").read_text().splitlines()]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def weights(run: Path) -> dict[str, np.ndarray]:
    return checkpoint.newest(run / "checkpoints").weights


def assert_good(run: Path) -> None:
    kept = weights(run)
    assert kept
    assert all(np.isfinite(array).all() for array in kept.values())


# --- Environments -------------------------------------------------------------------------------


def breaking(marker: Path, how: str) -> Callable[[], Any]:
    """CartPole of which the first to come to its fiftieth step breaks, once for all processes."""

    class Breaking(gymnasium.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == 50 and self._is_first():
                if how == "hangs":
                    time.sleep(1000)
                raise OSError("the simulator is gone")
            return self.env.step(action)

        def _is_first(self) -> bool:
            try:
                with marker.open("x") as file:
                    file.write(str(os.getpid()))
            except FileExistsError:
                return False
            return True

    return lambda: Breaking(gymnasium.make("CartPole-v1"))


def test_a_worker_that_hangs_in_a_step_is_asked_and_replaced(tmp_path: Path) -> None:
    run = mh.Run(
        breaking(tmp_path / "marker", "hangs"), strategy="hogwild", workers=2, steps=10**9,
        hang_s=4.0, out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    for _ in run:
        if (
            all(process["pid"] for process in run.workers.process_table())
            and run.workers.faults()["restarts"]
        ):
            break
    (fault,) = faults(run.path)
    assert f"(pid {(tmp_path / 'marker').read_text()}) no progress for 4 s" in fault["cause"]
    assert fault["action"] == "restarted as incarnation 1"
    assert "in step" in fault["detail"], "where it hung"
    assert run.summary["faults"]["restarts"] == 1


def test_a_worker_that_hangs_as_the_run_ends_is_named(tmp_path: Path) -> None:
    run = mh.train(
        breaking(tmp_path / "marker", "hangs"), strategy="hogwild", workers=2, steps=2000,
        out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    (fault,) = faults(run.path)
    assert f"(pid {(tmp_path / 'marker').read_text()}) did not stop" in fault["cause"]
    assert run.summary["faults"]["restarts"] == 0
    assert_good(run.path)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_raises_is_made_again(workers: int, tmp_path: Path) -> None:
    run = mh.train(
        breaking(tmp_path / "marker", "raises"), strategy="hogwild", workers=workers, steps=600,
        out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    (fault,) = faults(run.path)
    assert f"(pid {(tmp_path / 'marker').read_text()})" in fault["cause"]
    assert "OSError (the simulator is gone) in lane" in fault["cause"]
    assert fault["action"] == "environment replaced"
    assert 'raise OSError("the simulator is gone")' in fault["detail"]
    assert run.summary["faults"]["restarts"] == 0
    assert read(run.path / "status.json")["environment_breaks"] == 1
    assert 600 <= run.summary["agent_steps"] <= 600 + 2 * workers


# --- Numbers that are none ----------------------------------------------------------------------

NAN_NET = """
from torch import nn
class Net(nn.Module):
    calls = 0
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)
    def forward(self, seen):
        Net.calls += self.training and len(seen) == 16
        return self.layer(seen) * (float("nan") if Net.calls > 30 else 1.0)
"""


@pytest.mark.parametrize("strategy", ["lock", "parameter_server"])
def test_losses_that_are_no_numbers_stop_many_workers(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nan.py").write_text(NAN_NET)
    words = [*SMALL_SECTIONS, "--workers=2", "--network=nan.py:Net", "--quiet"]
    words += [f"--strategy={strategy}", "--checkpoint.period-minutes=0"]
    assert call("train", "cartpole", *words, "--steps=5000", "--out=run") == 1
    said = capsys.readouterr().err
    assert "not finite 10 times in a row" in said.splitlines()[0]
    assert len(said.splitlines()) == 2
    rows = faults(tmp_path / "run")
    assert [row["action"] for row in rows].count("update skipped, batch kept") == 1
    assert rows[-1]["action"] == "stopped", "and a checkpoint was written"
    from safetensors.numpy import load_file

    assert load_file("run/nonfinite_batch.safetensors")["observation"].shape == (16, 4)
    assert_good(tmp_path / "run")
    assert not psutil.Process().children(recursive=True)


def test_weights_that_are_no_numbers_are_never_kept(tmp_path: Path) -> None:
    run = mh.Run(
        "cartpole", steps=10**9, out=tmp_path / "run", checkpoint={"period_minutes": 0.002}, **SMALL
    )

    def poison() -> None:
        for _ in run:
            if checkpoint.newest(run.path / "checkpoints").step:
                run.worker.model.vector.detach()[:] = float("nan")

    with pytest.raises(mh.Failure, match="not finite 10 times in a row"):
        poison()
    assert any("weights are not finite" in row["cause"] for row in faults(run.path))
    assert_good(run.path)
    more = mh.resume(run.path, steps=checkpoint.newest(run.path / "checkpoints").step + 50)
    assert more.workers.faults()["nonfinite_skipped"] == 0


# --- Too small, too many ------------------------------------------------------------------------


def test_workers_that_need_more_memory_than_exists_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--workers=2", "--strategy=hogwild", "--memory.capacity=1000000000000", "--out=run"]
    assert call("train", "cartpole", *words) == 2
    what, remedy = capsys.readouterr().err.splitlines()
    assert "GB" in what
    assert "memory.capacity" in remedy
    assert not psutil.Process().children(recursive=True)
    assert not (tmp_path / "run").exists()


def test_two_runs_at_once_are_as_alone(tmp_path: Path) -> None:
    """One worker in a process of its own repeats bit for bit, whatever else runs."""

    def begun(name: str, **options: Any) -> mh.Run:
        options = {"strategy": "parameter_server", "backend": "processes", **options}
        return mh.Run("cartpole", steps=600, out=tmp_path / name, **options, **SMALL)

    alone = begun("alone", strategy="serial", backend="inprocess")
    alone.finish()
    both: list[Iterator[Any]] = [iter(begun("one")), iter(begun("two"))]
    while both:
        both = [run for run in both if next(run, None) is not None]
    for name in ("one", "two"):
        mine, theirs = weights(tmp_path / name), weights(alone.path)
        assert all((mine[key] == theirs[key]).all() for key in theirs)


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    first = mh.train("cartpole", steps=200, out=tmp_path / "run", **SMALL)
    running = mh.Run.resumed(first.path, steps=10**9)
    turns: Any = iter(running)
    next(turns)
    with pytest.raises(mh.BadRequest, match="being written by another run"):
        mh.resume(first.path, steps=10**9, quiet=True)
    with pytest.raises(mh.BadRequest, match="exists already"):
        mh.train("cartpole", steps=200, out=tmp_path / "run", **SMALL)
    turns.close()
    reached = running.summary["agent_steps"]
    assert mh.resume(first.path, steps=reached + 10, quiet=True).summary["agent_steps"] > reached


# --- What environments leave behind ---------------------------------------------------------------


def restless(folder: Path) -> Callable[[], Any]:
    """CartPole that goes elsewhere, and leaves there a process that it forked."""

    class Restless(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            if Path.cwd() != folder:
                os.chdir(folder)
                if not (child := os.fork()):
                    time.sleep(1000)
                with (folder / "helpers").open("a") as file:
                    file.write(f"{child}\n")
            return self.env.step(action)

    return lambda: Restless(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_moves_and_forks_keeps_no_lock(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (elsewhere := tmp_path / "elsewhere").mkdir()

    def helpers() -> list[int]:
        return [int(pid) for pid in (elsewhere / "helpers").read_text().split()]

    try:
        run = mh.train(
            restless(elsewhere), strategy="hogwild", workers=workers, steps=600, out="run",
            evaluation={"period_steps": 200, "episodes": 1}, **SMALL,
        )  # fmt: skip
        assert all(psutil.pid_exists(pid) for pid in helpers())
        assert [path.name for path in elsewhere.iterdir()] == ["helpers"]
        assert {"metrics.jsonl", "summary.json"} <= {path.name for path in run.path.iterdir()}
        with pytest.raises(mh.BadRequest, match="it has finished"):  # and not: it is being written
            mh.resume(run.path, make_env=restless(elsewhere), quiet=True)
    finally:
        for pid in helpers():
            os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # of a worker
                os.waitpid(pid, 0)


def test_a_forked_process_keeps_no_lock_of_a_run_that_was_killed(tmp_path: Path) -> None:
    """And closing its own copy takes none from a run that lives."""
    (tmp_path / "run").mkdir()
    folder = RunDir(tmp_path / "run")
    folder.claim()
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, str(str(folder.path) in descriptors()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"False"
    with pytest.raises(mh.BadRequest, match="being written"):
        RunDir(tmp_path / "run").claim()
    folder.let_go()
    RunDir(tmp_path / "run").claim()


# --- Killed at any moment -----------------------------------------------------------------------


def group_of(pid: int) -> list[int]:
    """Every process of the session, main included. Zombies do not count."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            ours = os.getsid(process.pid) == pid
        except OSError:
            continue
        if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def gone(pid: int) -> bool:
    until = time.monotonic() + LONG_S
    while group_of(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not group_of(pid)


def named_memory_of(pid: int) -> list[str]:
    """Of a session: what it has mapped from /dev/shm."""
    found = list[str]()
    for each in group_of(pid):
        with suppress(OSError):
            maps = Path(f"/proc/{each}/maps").read_text().splitlines()
            found += [line for line in maps if "/dev/shm/" in line]
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


SERVER = [
    *SMALL_SECTIONS, "--strategy=parameter_server", "--workers=2", "--parameter-server.shards=2",
    "--steps=1000000000", "--checkpoint.period-minutes=0.01", "--quiet", "--out=run",
]  # fmt: skip


@pytest.mark.parametrize("moment", ["starting", "working", "saving"])
def test_nothing_of_a_run_outlives_its_main(moment: str, tmp_path: Path) -> None:
    run, chance = tmp_path / "run", random.Random(moment)
    with start("train", "cartpole", *SERVER, cwd=tmp_path) as main:
        try:
            if moment == "starting":
                until(lambda: len(group_of(main.pid)) > 1)
            elif moment == "working":
                until(lambda: (run / "status.json").is_file())
            else:
                until(lambda: any(run.glob("checkpoints/[0-9]*/manifest.json")))
            time.sleep(chance.uniform(0, 1.5))
            assert main.poll() is None
            assert not named_memory_of(main.pid), "nothing that could be left behind"
        finally:
            main.kill()
    assert gone(main.pid)
    if moment == "saving":
        assert_good(run)
        steps = checkpoint.newest(run / "checkpoints").step + 2000
        more = mh.resume(run, steps=steps, quiet=True)
        assert steps <= more.summary["agent_steps"] <= steps + 2 * 4
        assert_good(run)


def test_ctrl_c_leaves_a_checkpoint_and_nobody(tmp_path: Path) -> None:
    with start("train", "cartpole", *SERVER, cwd=tmp_path) as main:
        try:
            until(lambda: (tmp_path / "run" / "status.json").is_file())
            os.killpg(main.pid, signal.SIGINT)  # as a terminal does: to all of them
            assert main.wait(LONG_S) == 130
        finally:
            main.kill()
    assert gone(main.pid)
    assert_good(tmp_path / "run")
    assert read(tmp_path / "run" / "status.json")["state"] == "interrupted"


def descriptors() -> list[str]:
    gc.collect()
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one this was read by
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(found)


def test_an_error_of_the_onlooker_leaves_nobody(tmp_path: Path) -> None:
    def look(name: str) -> None:
        for _ in mh.Run(
            "cartpole", strategy="parameter_server", workers=2, steps=10**9, out=tmp_path / name,
            **SMALL,
        ):  # fmt: skip
            raise KeyError(name)

    for name in ("one", "two"):
        with pytest.raises(KeyError, match=name):
            look(name)
        assert not psutil.Process().children(recursive=True)
        if name == "one":
            after_one = descriptors()
    assert descriptors() == after_one


ROLES: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "workers and shards": (
        {"strategy": "parameter_server", "workers": 2, "parameter_server": {"shards": 2}},
        ("worker", "shard"),
    ),
    "actors and learners": (
        {"strategy": "hogwild", "actors": 2, "learners": 2},
        ("actor", "learner"),
    ),
}


@pytest.mark.parametrize("workers", ROLES)
def test_some_are_killed_at_random_moments(workers: str, tmp_path: Path) -> None:
    options, roles = ROLES[workers]
    run = mh.Run("cartpole", steps=10**9, out=tmp_path / "run", **options, **SMALL)
    chance, killed, seen = random.Random(5), list[int](), list[int]()
    for _ in run:
        there = [process for process in run.workers.process_table() if process["pid"]]
        told = [row["cause"] for row in faults(run.path)] if killed else []
        noticed = sum("SIGKILL" in cause for cause in told)
        if noticed == len(killed) == 4 and len(there) == 4 and run.workers.updates > seen[-1]:
            break
        if noticed == len(killed) < 4 and len(there) == 4 and run.workers.updates > 50:
            role = roles[len(killed) % 2]
            time.sleep(chance.uniform(0, 0.1))
            unlucky = chance.choice(
                [process for process in there if process["role"].startswith(role)]
            )
            os.kill(unlucky["pid"], signal.SIGKILL)
            killed.append(unlucky["pid"])
            seen.append(run.workers.updates + 50)
    assert len(killed) == 4
    rows = faults(run.path)
    assert [row["action"].split(" as")[0] for row in rows] == ["restarted"] * 4
    assert all(str(pid) in str(row) for pid, row in zip(killed, rows, strict=True))
    assert run.summary["faults"]["restarts"] == 4
    assert_good(run.path)
