"""A run's folder from somebody else: it can spoil itself, and nothing beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import manyhands as mh
from manyhands.runs.rundir import RunDir
from manyhands.types import Failure
from support.command_line import SMALL, assert_told, call, contents

Capture = pytest.CaptureFixture[str]
RESUME = ["resume", "run", "--steps=320", "--quiet"]
FILES = [
    ".summary.json.tmp", ".status.json.tmp", "summary.json", "status.json", "metrics.jsonl",
    "faults.jsonl", "command.txt", "versions.json", "nonfinite_batch.safetensors",
]  # fmt: skip
FOLDERS = ["snapshots", "best", "videos"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    often = {"period_steps": 100, "episodes": 1}
    path = tmp_path_factory.mktemp("trained") / "run"
    return mh.train("cartpole", out=path, evaluation=often, **SMALL).path


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """What the owner of this machine has beside the run."""
    path = tmp_path / "mine"
    (path / "7" / "inner").mkdir(parents=True)
    for name in (".bashrc", "7/inner/file", "config.json"):
        (path / name).write_text("mine\n")
    return path


def plant(place: Path, target: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def test_links_of_a_run_lead_nowhere(run: Path, mine: Path) -> None:
    """All that can be planted without keeping it from training, at once."""
    before = contents(mine)
    table = json.loads((run / "config.json").read_text())
    table["task"] = "$(touch owned)"
    (run / "config.json").write_text(json.dumps(table))
    for name in FILES:
        plant(run / name, mine / ".bashrc")
    for name in FOLDERS:
        plant(run / name, mine)
    assert call(*RESUME) == 0
    assert contents(mine) == before
    assert not (run / "summary.json").is_symlink()
    assert json.loads((run / "summary.json").read_text())["agent_steps"] >= 320


@pytest.mark.parametrize("name", ["config.json", "checkpoints"])
def test_a_run_that_cannot_do_without_them_refuses_links(
    name: str, run: Path, mine: Path, capsys: Capture
) -> None:
    plant(run / name, mine if name == "checkpoints" else mine / ".bashrc")
    before = contents(mine)
    assert call(*RESUME) in (1, 2)
    assert_told(capsys.readouterr().err, name, "symbolic link")
    assert contents(mine) == before


def test_a_pipe_is_not_waited_for(run: Path, capsys: Capture) -> None:
    for name in ("metrics.jsonl", "faults.jsonl"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    assert call(*RESUME) == 0
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    assert call(*RESUME) == 2
    assert_told(capsys.readouterr().err, "config.json", "not a regular file")


def test_figures_and_films_follow_no_links(run: Path, mine: Path, capsys: Capture) -> None:
    before = contents(mine)
    (run / "curves.png").symlink_to(mine / ".bashrc")
    assert call("plot", "run") == 0
    assert not (run / "curves.png").is_symlink()
    (run / "videos").symlink_to(mine)
    assert call("record", "run", "--seconds=0.1") == 1
    assert_told(capsys.readouterr().err, "videos", "symbolic link")
    assert contents(mine) == before


SPARSE: dict[str, tuple[list[str], str]] = {
    "config.json": (["evaluate", "run", "--episodes=1"], "config.json: 8.6 GB"),
    "metrics.jsonl": (["plot", "run"], "metrics.jsonl: 8.6 GB"),
}


@pytest.mark.parametrize("name", SPARSE)
def test_files_of_gigabytes_are_not_read(name: str, run: Path, capsys: Capture) -> None:
    os.truncate(run / name, 8 << 30)
    words, told = SPARSE[name]
    assert call(*words) == 2
    err = capsys.readouterr().err
    assert_told(err, told)
    assert "has it trained yet" not in err


def test_a_resumed_run_says_that_its_metrics_are_too_large(run: Path, capsys: Capture) -> None:
    os.truncate(run / "metrics.jsonl", 8 << 30)
    assert call("resume", "run", "--steps=320") == 0
    assert "metrics.jsonl is too large: 8.6 GB" in capsys.readouterr().out
    assert call("resume", "run", "--steps=340", "--quiet") == 0
    (run / "metrics.jsonl").unlink()
    assert call("plot", "run") == 2
    assert_told(capsys.readouterr().err, "has it trained yet?")


def with_config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def harm(run: Path) -> None:
        table = json.loads((run / "config.json").read_text())
        change(table)
        (run / "config.json").write_text(json.dumps(table))

    return harm


CONFIGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a network of gigabytes": (
        with_config(lambda t: t["config"]["network"].update(hidden=[300_000, 300_000])),
        "90,001,500,000 parameters",
    ),
    "endless layers": (
        with_config(lambda t: t["config"]["network"].update(hidden=[8] * 100_000)),
        "layers",
    ),
    "escape codes": (with_config(lambda t: t.update(task="\x1b]0;owned\x07")), "no task"),
    "a task of a megabyte": (with_config(lambda t: t.update(task="x" * 1_000_000)), "no task"),
}


@pytest.mark.parametrize("use", ["resume", "evaluate"])
@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_nobody_can_afford(case: str, use: str, run: Path, capsys: Capture) -> None:
    harm, told = CONFIGS[case]
    harm(run)
    assert call(*(RESUME if use == "resume" else ["evaluate", "run", "--episodes=1"])) in (1, 2)
    assert_told(capsys.readouterr().err, told)


@pytest.mark.parametrize("backend", ["inprocess", "processes"])
def test_a_refused_resume_lets_go_at_once(backend: str, tmp_path: Path) -> None:
    options = {"recipe": "downpour", "workers": 2, "backend": "inprocess", **SMALL, "steps": 60}
    path = mh.train("toy/identity", out=tmp_path / "run", **options).path
    # With a smaller network the checkpoint is refused after everything was made.
    with_config(lambda t: t["config"]["run"].update(backend=backend))(path)
    with_config(lambda t: t["config"]["network"].update(hidden=[4, 4]))(path)
    before = psutil.Process().children()
    with pytest.raises(Failure) as caught:  # which keeps all that was there alive
        mh.resume(path, steps=90)
    assert psutil.Process().children() == before
    RunDir(path).claim()
    assert "does not fit" in caught.value.what
