"""--resume-if-exists: what a run was made with stays, what it is asked for now is recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from support.command_line import SMALL, SMALL_SECTIONS, assert_told, call

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "trained"
    mh.train("cartpole", out=place, **SMALL)
    return place


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def again(run: Path, *words: str) -> int:
    steps = () if any("--steps" in w or "--minutes" in w for w in words) else ("--steps=300",)
    return call(
        "train", "cartpole", *SMALL_SECTIONS, *steps, "--out", run, "--resume-if-exists", *words
    )


def recorded(run: Path, section: str, name: str) -> Any:
    return json.loads((run / "config.json").read_text())["config"][section][name]


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--dqn.lr=0.123"], ["--dqn.lr 0.001, not 0.123"]), (["--seed=9"], ["--seed 1, not 9"]),
     (["--recipe=double-dqn"], ["--recipe dqn"]), (["--network.hidden=8"], ["[16, 16], not [8]"])],
)  # fmt: skip
def test_another_value_is_refused_and_nothing_is_touched(
    words: list[str], told: list[str], run: Path, capsys: Capture
) -> None:
    before = (run / "config.json").read_bytes(), (run / "metrics.jsonl").read_bytes()
    assert again(run, *words) == 2
    assert_told(capsys.readouterr().err, *told, "--steps, --minutes")
    assert before == ((run / "config.json").read_bytes(), (run / "metrics.jsonl").read_bytes())


def test_how_long_is_taken_and_recorded(run: Path, capsys: Capture) -> None:
    assert again(run, "--steps=400") == 0
    assert "resumed at step 300" in capsys.readouterr().out
    assert recorded(run, "run", "steps") == 400
    commands = (run / "command.txt").read_text().splitlines()
    assert len(commands) == 2
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["agent_steps"], summary["command"]) == (400, commands[1])


def test_resume_records_how_long_too(run: Path, capsys: Capture) -> None:
    assert call("resume", run, "--steps=350") == 0
    assert "resumed at step 300" in capsys.readouterr().out
    assert recorded(run, "run", "steps") == 350
    assert len((run / "command.txt").read_text().splitlines()) == 2


def test_a_finished_run_says_so(run: Path, capsys: Capture) -> None:
    assert again(run) == 0
    assert "300 agent steps: it has finished" in capsys.readouterr().out


def test_one_that_was_to_last_minutes_has_finished_as_well(tmp_path: Path, capsys: Capture) -> None:
    assert again(tmp_path / "run", "--minutes=0.005") == 0
    first = json.loads((tmp_path / "run" / "summary.json").read_text())["agent_steps"]
    capsys.readouterr()
    assert again(tmp_path / "run", "--minutes=0.005") == 0
    assert "it has finished" in capsys.readouterr().out
    assert again(tmp_path / "run", "--minutes=0.006") == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["agent_steps"] > first


def test_killed_before_its_first_checkpoint_it_begins_again(run: Path, capsys: Capture) -> None:
    """With what is asked for now, and no row of the attempt before."""
    shutil.rmtree(run / "checkpoints")
    (run / "snapshots" / "7").mkdir()
    assert again(run, "--dqn.lr=0.123", "--steps=200") == 0
    told = capsys.readouterr().out
    assert "stopped before its first checkpoint: it begins again" in told
    assert recorded(run, "dqn", "lr") == 0.123
    assert len((run / "command.txt").read_text().splitlines()) == 1
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["agent_steps"] for row in rows) == 200
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    assert [path.name for path in (run / "snapshots").iterdir()] == ["0"]
    assert "began again" in (run / "faults.jsonl").read_text()


def test_that_it_was_killed_is_said(run: Path, capsys: Capture) -> None:
    told = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**told, "state": "training", "pid": 1234567}))
    assert again(run, "--steps=310") == 0
    assert "it was killed: its process (pid 1234567)" in capsys.readouterr().out


def test_a_call_from_python_is_recorded_as_it_was_written(tmp_path: Path) -> None:
    run = mh.train("cartpole", recipe="dqn", out=tmp_path / "run", **SMALL)
    assert run.summary["command"].startswith('mh.train("cartpole", recipe="dqn", out="')
    assert 'dqn={"warmup_steps": 50, ' in run.summary["command"]
    assert (tmp_path / "run" / "command.txt").read_text() == run.summary["command"] + "\n"
    more = mh.resume(run.path, steps=320, quiet=True)
    assert more.summary["command"].startswith('mh.resume("')
    assert "steps=320" in more.summary["command"]
    direct = mh.Run("cartpole", out=tmp_path / "other", **SMALL)
    assert direct.summary["command"].startswith('mh.Run("cartpole", out="')
    direct.finish()
