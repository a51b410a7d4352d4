"""Whether a run trains, has ended or is dead, seen from its folder; lists of runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.runs import liveness, rundir
from support.command_line import SMALL, assert_told, call, command


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "trained"
    mh.train("cartpole", out=place, **SMALL)
    return place


def made(trained: Path, place: Path, **status: Any) -> Path:
    """A run whose status says this."""
    shutil.copytree(trained, place)
    told = json.loads((place / "status.json").read_text())
    (place / "status.json").write_text(json.dumps({**told, **status}))
    return place


def test_the_status_has_its_time_and_its_process(trained: Path) -> None:
    status = liveness.read(trained, "status.json")
    assert status["pid"] == os.getpid()
    assert 0 <= time.time() - status["time"] < 600


@pytest.mark.parametrize(
    ("said", "state"),
    [("finished", "finished"), ("interrupted", "stopped"), ("failed", "failed"),
     ("training", "dead")],
)  # fmt: skip
def test_a_run_nobody_holds_is_what_it_last_said(
    said: str, state: str, trained: Path, tmp_path: Path
) -> None:
    assert liveness.of(made(trained, tmp_path / "run", state=said)).state == state


def test_a_run_that_is_held_trains(trained: Path, tmp_path: Path) -> None:
    run = made(trained, tmp_path / "run", state="training")
    held = rundir.RunDir(run)
    held.claim()
    assert liveness.of(run).state == "training"
    held.let_go()
    life = liveness.of(run)
    assert life.state == "dead"
    assert f"pid {os.getpid()}" in life.sentence()
    assert "300 agent steps" in life.sentence()


def test_a_run_killed_before_it_said_anything_is_dead(trained: Path, tmp_path: Path) -> None:
    run = made(trained, tmp_path / "run")
    (run / "status.json").unlink()
    assert liveness.of(run).state == "dead"


def test_where_there_are_no_locks_the_process_is_asked_for(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr("manyhands.runs.folder_lock.fcntl.flock", none)
    mine = made(trained, tmp_path / "mine", state="training")
    gone = made(trained, tmp_path / "gone", state="training", pid=2**22 + 1)
    elsewhere = made(trained, tmp_path / "else", state="training", host="another", time=1.0)
    states = [liveness.of(run).state for run in (mine, gone, elsewhere)]
    assert states == ["training", "dead", "dead"]


def test_a_list_of_runs(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(trained, tmp_path / "one", return_mean_100=9.876, agent_steps=1234)
    solved = {"agent_steps": 9000}
    made(trained, tmp_path / "two", state="training", return_mean_100=-12.34, solved=solved)
    (tmp_path / "no run").mkdir()
    assert call("list", tmp_path) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["run", "task", "recipe", "state", "agent", "steps", "return", "solved"],
        ["one", "cartpole", "dqn", "finished", "1,234", "9.88", "no"],
        ["two", "cartpole", "dqn", "dead", "300", "-12.3", "at", "9,000"],
    ]
    assert call("list", tmp_path / "one") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_a_strangers_folder_says_is_printed_plainly(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(trained, tmp_path / "run", agent_steps="many", return_mean_100=[], solved=7)
    (run / "config.json").write_text(json.dumps({"task": "\x1b[2J" + 99 * "x", "config": 3}))
    assert call("list", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert len(shown.splitlines()[1]) < 120


@pytest.mark.parametrize("where", ["absent", "."])
def test_a_folder_without_runs(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("list", tmp_path / where) == 2
    assert_told(capsys.readouterr().err, "folder")


LEAVING = """
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Leaving(CartPoleEnv):
    def step(self, action):
        os._exit(0)
"""


def test_an_environment_that_ends_the_process_leaves_a_dead_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing can catch os._exit, so the folder must say it: at the first step already."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    run = tmp_path / "run"
    done = command("train", f"{tmp_path}/leaving.py:Leaving", "--out", run, "--envs-per-worker=1")
    assert done.returncode == 0
    status = liveness.read(run, "status.json")
    assert (status["state"], status["agent_steps"]) == ("training", 0)
    assert call("list", run) == 0
    assert " dead " in capsys.readouterr().out
    assert call("resume", run, "--allow-code") == 2
    assert_told(capsys.readouterr().err, "no checkpoint", f"(pid {status['pid']})", "begin it")
