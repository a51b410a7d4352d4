"""A run keeps the user's own files with their hashes: it can be moved, edits do not reach it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.config import kept_code, plans
from manyhands.runs import rundir
from manyhands.types import users_files
from support.command_line import assert_told, call

ENV = """
import gymnasium as gym
import numpy as np
from sizes import LENGTH

class Path(gym.Env):
    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), REWARD, False, self.steps == LENGTH, {}
""".replace("REWARD", "1.0")
NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)
    def forward(self, seen):
        return self.layer(seen).relu()
"""
ALGORITHM = """
from dataclasses import dataclass
from manyhands.algorithms import dqn

@dataclass(frozen=True)
class Config(dqn.Config): ...

class Mine(dqn.DQN): ...

make = Mine
"""
WORDS = [
    "--mine.warmup-steps=50", "--mine.batch-size=16", "--memory.capacity=500", "--threads=1",
    "--steps=200", "--quiet", "--out=run",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three files in two folders, one of which has a neighbour."""
    here = tmp_path_factory.mktemp("kept")
    (here / "nets").mkdir()
    (here / "paths.py").write_text(ENV)
    (here / "sizes.py").write_text("LENGTH = 10\n")
    (here / "mine.py").write_text(ALGORITHM)
    (here / "nets" / "net.py").write_text(NET)
    before = os.getcwd()
    os.chdir(here)
    try:
        files = ["paths.py:Path", "--algorithm=mine.py", "--network=nets/net.py:Net"]
        assert call("train", *files, *WORDS) == 0
    finally:
        os.chdir(before)
    return here


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all, at another place: the originals that config.json names are the first ones."""
    shutil.copytree(trained, tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "moved"


@pytest.fixture
def gone(here: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same where the originals are not there."""
    read = users_files.Path.is_file

    def is_file(path: Path) -> bool:
        return read(path) and trained not in path.parents

    monkeypatch.setattr(users_files.Path, "is_file", is_file)
    return here


def recorded(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())


def score(*words: Any) -> int:
    return call("evaluate", "run", "--episodes=1", *words)


def test_files_and_neighbours_are_copied_with_their_hashes(trained: Path) -> None:
    code = recorded(trained / "run")["code"]
    copies = {copy["file"]: copy for kept in code for copy in kept}
    sources = {
        "code/mine.py": "mine.py",
        "code/2/net.py": "nets/net.py",
        "code/paths.py": "paths.py",
        "code/sizes.py": "sizes.py",
    }
    assert {file: copy["source"] for file, copy in copies.items()} == {
        file: str(trained / source) for file, source in sources.items()
    }
    for file, copy in copies.items():
        content = (trained / "run" / file).read_bytes()
        assert content == Path(copy["source"]).read_bytes()
        assert copy["sha256"] == users_files.digest(content)


def test_a_moved_run_plays_and_continues_by_its_copies(
    gone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("paths.py", "sizes.py", "mine.py"):
        (gone / name).unlink()
    assert score() == 2  # the copies are code too
    assert_told(capsys.readouterr().err, "--allow-code")
    assert score("--allow-code") == 0
    told = capsys.readouterr()
    assert "10.0" in told.out
    assert "mine.py is missing: using the copy in run/code" in told.err
    assert call("resume", "run", "--steps=300", "--quiet", "--allow-code") == 0
    assert mh.load("run", allow_code=True).step == 300
    assert recorded(gone / "run")["code"][0][0]["source"].endswith("/mine.py")


def test_while_the_originals_are_the_same_they_run(
    here: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = mh.load(here / "run", allow_code=True).plan
    assert plan.top.algorithm == str(trained / "mine.py")
    assert plan.notes == ()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("here")
def test_an_edited_original_gives_way_to_the_copy(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = (trained / "sizes.py").read_text()
    (trained / "sizes.py").write_text("LENGTH = 3\n")
    try:
        assert score("--allow-code") == 0
        told = capsys.readouterr()
        assert "10.0" in told.out
        assert f"{trained / 'sizes.py'} has changed since: using the copy in run/code" in told.err
    finally:
        (trained / "sizes.py").write_text(original)


@pytest.mark.parametrize("how", ["edited", "missing", "a link"])
def test_a_copy_that_is_not_what_was_trained_with_does_not_run(
    gone: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = gone / "run" / "code" / "mine.py"
    content = copy.read_text()
    copy.unlink()
    if how == "edited":
        copy.write_text(content + "raise AssertionError\n")
    elif how == "a link":
        (gone / "other.py").write_text(content)
        copy.symlink_to(gone / "other.py")
    assert score("--allow-code") == 2
    assert_told(capsys.readouterr().err, "mine.py", "--algorithm")


def test_a_file_that_is_typed_takes_the_place_of_the_runs(gone: Path) -> None:
    (gone / "run" / "code" / "mine.py").unlink()
    (gone / "other.py").write_text(ALGORITHM)
    policy = mh.load("run", algorithm="other.py", network="nets/net.py:Net", allow_code=True)
    assert policy.plan.top.algorithm == str(gone / "other.py")
    assert policy.plan.sections["other"].batch_size == 16
    assert policy.plan.network.torso == f"{gone}/nets/net.py:Net"
    assert score("--allow-code", "--algorithm=other.py", "--network=nets/net.py:Net") == 0


def test_what_is_typed_needs_no_further_yes(here: Path) -> None:
    table = recorded(here / "run")
    table["config"]["env"]["id"] = "CartPole-v1"
    (here / "run" / "config.json").write_text(json.dumps(table))
    given: dict[str, Any] = {"algorithm": "mine.py", "network": "nets/net.py:Net"}
    with pytest.raises(mh.BadRequest, match=r"mine\.py"):
        mh.load("run", network="nets/net.py:Net")
    assert mh.load("run", **given).plan.top.algorithm == str(here / "mine.py")


def test_a_resume_with_another_file_keeps_that(gone: Path, trained: Path) -> None:
    (gone / "other.py").write_text(ALGORITHM + "# other\n")
    words = ["--algorithm=other.py", "--steps=300", "--quiet", "--allow-code"]
    assert call("resume", "run", *words) == 0
    kept = [copy for kept in recorded(gone / "run")["code"] for copy in kept]
    (copy,) = (copy for copy in kept if copy["source"] == str(gone / "other.py"))
    assert (gone / "run" / copy["file"]).read_text().endswith("# other\n")
    config = recorded(gone / "run")["config"]
    assert config["run"]["algorithm"] == str(gone / "other.py")
    assert config["env"]["id"] == f"{trained}/paths.py:Path"  # though its copy runs
    shutil.move("run", "moved-again")
    assert mh.load("moved-again", allow_code=True).step == 300


NAMES = ["my env ü.py", "agent 🤖.py", "👩\u200d💻.py", "-.py", ".hidden.py", "it's #1.py"]


@pytest.mark.parametrize("name", NAMES)
def test_files_of_any_name_are_read_again(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(ENV)
    (tmp_path / "sizes.py").write_text("LENGTH = 10\n")
    plan = plans.resolve(f"{tmp_path / name}:Path", {})
    folder = rundir.RunDir(tmp_path / "run")
    folder.path.mkdir()
    folder.write_config(plan)
    again = plans.from_json(folder.config, allow_code=True)
    assert {Path(copy.file).name for kept in again.code for copy in kept.copies} == {
        name,
        "sizes.py",
    }
    assert again.env.id == f"{tmp_path / name}:Path"


@pytest.mark.parametrize("file", ["code", "code/", "code//x.py", "code/./x.py", "code/.."])
def test_a_copy_lies_in_the_folder_of_copies(file: str) -> None:
    copy = {"file": file, "sha256": "0" * 64, "source": "/x.py"}
    with pytest.raises(ValueError, match="not a copy"):
        kept_code.from_json([[copy]])


@pytest.mark.parametrize(
    "code",
    [
        3,
        [3],
        [[]],
        [[{"file": "code/../../x.py", "sha256": "0" * 64, "source": "/x.py"}]],
        [[{"file": "/etc/passwd", "sha256": "0" * 64, "source": "/x.py"}]],
        [[{"file": "code/x.py", "sha256": "0", "source": "/x.py"}]],
        [[{"file": "code/x.py", "sha256": "0" * 64, "source": 3}]],
        [[{"file": "code/x.py", "sha256": "0" * 64, "source": "/x.py"}] * (kept_code.MOST + 1)],
    ],
)
def test_what_is_no_list_of_copies_is_refused(here: Path, code: Any) -> None:
    table = {**recorded(here / "run"), "code": code}
    (here / "run" / "config.json").write_text(json.dumps(table))
    with pytest.raises(mh.BadRequest, match="is not a run's configuration"):
        mh.load("run", allow_code=True)


def test_an_edit_during_training_reaches_no_process(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle
    from dataclasses import fields

    from manyhands.roles.jobs import WorkerJob

    shutil.copytree(trained, tmp_path / "here", ignore=shutil.ignore_patterns("run"))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    small = {"warmup_steps": 50, "batch_size": 16}
    run = mh.Run("paths.py:Path", steps=100, out="run", threads=1, dqn=small)
    (tmp_path / "here" / "sizes.py").write_text("LENGTH = 3\n")
    assert run.evaluate(episodes=1).scores == [10.0]
    job = WorkerJob(run.workers.plan, *[None] * (len(fields(WorkerJob)) - 1))  # type: ignore[arg-type]
    there = pickle.loads(pickle.dumps(job))
    assert there.plan.env.id == f"{tmp_path}/here/run/code/paths.py:Path"
    run.finish()
    assert run.summary["agent_steps"] >= 100
