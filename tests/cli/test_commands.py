"""What commands print besides help: names, and every value with its source."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from manyhands import cli
from manyhands.cli.arguments import ResumeFlags
from manyhands.config import plans, presets, registry, sections
from manyhands.runs import opening
from support.command_line import assert_told, call

Capture = pytest.CaptureFixture[str]


def test_the_list_names_all(capsys: Capture) -> None:
    assert call("list") == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    for kind in ("tasks", "recipes"):
        assert f"{kind}:" in listed
        assert set(presets.names(kind)) <= listed
    for room in ("algorithms", "strategies", "backends"):
        assert set(registry.names(room)) <= listed
    assert "_atari" not in listed


def values(text: str) -> dict[str, tuple[str, str]]:
    """name -> value, source of what --print-config says."""
    parts = [line.split(None, 2) for line in text.splitlines()[1:]]
    return {part[0]: (part[1], part[2].strip()) for part in parts if len(part) == 3}


TASK = """
about = "a task of ours"
recipe = "ours"
steps = 11
seed = 5
[env]
id = "toy/identity"
[dqn]
gamma = 0.2
lr = 0.2
n_step = 2
batch_size = 2
[for.ours]
seed = 6
[for.ours.dqn]
n_step = 3
batch_size = 3
[for.dqn.dqn]
lr = 0.9
"""
RECIPE = """
about = "a recipe of ours"
algorithm = "dqn"
strategy = "serial"
[dqn]
double = true
gamma = 0.1
lr = 0.1
n_step = 1
batch_size = 1
"""


@pytest.fixture(name="presets")
def own_presets(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(presets.PRESETS, here / "presets")
    (folder / "tasks" / "mine.toml").write_text(TASK)
    (folder / "recipes" / "ours.toml").write_text(RECIPE)
    monkeypatch.setattr(presets, "PRESETS", folder)
    return folder


@pytest.mark.usefixtures("presets")
def test_which_source_of_a_value_wins(here: Path, capsys: Capture) -> None:
    words = ["train", "mine", "--dqn.batch-size=4", "--seed", "7", "--out=run", "--print-config"]
    assert call(*words) == 0
    found = values(capsys.readouterr().out)
    assert found["dqn.double"] == ("True", "recipe ours")
    assert found["dqn.gamma"] == ("0.2", "task mine")
    assert found["dqn.lr"] == ("0.2", "task mine")
    assert found["dqn.n_step"] == ("3", "task mine for ours")
    assert found["dqn.batch_size"] == ("4", "flag")
    assert found["dqn.warmup_steps"] == ("10000", "default")
    assert found["steps"] == ("11", "task mine")
    assert found["seed"] == ("7", "flag")
    assert found["recipe"] == ("ours", "task mine")
    assert found["algorithm"] == ("dqn", "recipe ours")
    assert not (here / "run").exists()
    assert call("train", "mine", "--recipe", "dqn", "--print-config") == 0
    found = values(capsys.readouterr().out)
    assert found["dqn.lr"] == ("0.9", "task mine for dqn")
    assert found["dqn.n_step"] == ("2", "task mine")
    assert found["recipe"] == ("dqn", "flag")
    assert found["seed"] == ("5", "task mine")


def test_every_value_is_printed_with_its_source(capsys: Capture) -> None:
    assert call("train", "cartpole", "--print-config") == 0
    printed = capsys.readouterr().out.splitlines()
    names = {line.split()[0] for line in printed[1:]}
    known = sections.types_of("dqn", "serial").items()
    wanted = {f"{name}.{field.name}" for name, kind in known for field in fields(kind)}
    assert wanted | {field.name for field in fields(sections.Top)} == names
    kept = "recipe dqn, which keeps it"
    source = ("default", "flag", "recipe dqn", kept, "task cartpole", "task cartpole for dqn")
    assert all(line.endswith(source) for line in printed[1:])


@pytest.mark.usefixtures("presets")
def test_a_mistake_in_a_preset_is_told(presets: Path, capsys: Capture) -> None:
    (presets / "tasks" / "mine.toml").write_text(TASK.replace("gamma", "gama"))
    assert call("train", "mine", "--print-config") == 2
    assert "--dqn.gama" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [(None, cli.SPINS), ("7", "7")])
def test_threads_spin_briefly_unless_the_user_has_said_how_long(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", before or "")
    if before is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    assert cli.main(["--version"]) == 0
    assert os.environ["GOMP_SPINCOUNT"] == after


def test_resume_offers_what_a_run_may_change(tmp_path: Path, capsys: Capture) -> None:
    assert {field.name for field in fields(ResumeFlags)} >= opening.MAY_CHANGE
    plan = plans.resolve("cartpole", {"run": {"threshold": 400.0}})
    (tmp_path / "config.json").write_text(json.dumps(plans.to_json(plan)))
    asked = ["--hang-s=300", "--threads=2", "--device=cpu", "--until-solved", "--print-config"]
    assert call("resume", tmp_path, *asked) == 0
    told = values(capsys.readouterr().out)
    names = ("hang_s", "threads", "device", "until_solved")
    assert [told[name][0] for name in names] == ["300.0", "2", "cpu", "True"]
    assert told["threshold"][0] == "400.0"
    assert call("resume", tmp_path, "--hang-s=1", "--print-config") == 2
    assert_told(capsys.readouterr().err, "--hang-s 1", "at least 2")
