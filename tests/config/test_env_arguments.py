"""Arguments of `gymnasium.make`: from flags, a task, Python and config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyhands as mh
from manyhands import envs
from manyhands.config import plans, presets, values
from manyhands.runs import rundir
from support.command_line import SMALL, SMALL_WORDS, assert_told, call


def made(**options: Any) -> Any:
    seed = np.random.SeedSequence(1)
    return envs.make(envs.Config(**options), lanes=1, seed=seed, threads=1)


def kwargs_of(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())["config"]["env"]["kwargs"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("false", False),
        ("True", True),
        ("none", None),
        ("null", None),
        ("3", 3),
        ("1_000", 1000),
        ("-0.5", -0.5),
        ("1e-3", 1e-3),
        ("8x8", "8x8"),
        ('"8"', "8"),
        ('["SF", "FG"]', ["SF", "FG"]),
        ('{"a": [1, true]}', {"a": [1, True]}),
        ("__import__('os')", "__import__('os')"),
        ("nan", "nan"),
        ("", ""),
    ],
)
def test_a_typed_text_is_a_literal_or_itself(text: str, value: Any) -> None:
    found = values.literal(text)
    assert found == value
    assert type(found) is type(value)


def test_they_reach_the_environment_and_the_record(tmp_path: Path) -> None:
    words = ["--env.kwargs.is_slippery", "false", "--env.kwargs.desc", '["SFF", "FFG"]']
    assert call("train", "FrozenLake-v1", *words, *SMALL_WORDS, "--out", tmp_path / "run") == 0
    kept = {"is_slippery": False, "desc": ["SFF", "FFG"]}
    assert kwargs_of(tmp_path / "run") == kept
    plan = plans.from_json(rundir.existing(tmp_path / "run").config, allow_code=False)
    assert plan.env.kwargs == kept
    assert mh.load(tmp_path / "run").spec.input_shape == (6,)


def test_in_python_a_text_stays_a_text(tmp_path: Path) -> None:
    given = {"kwargs": {"map_name": "8x8"}}
    run = mh.train("FrozenLake-v1", env=given, out=tmp_path / "run", **SMALL)
    assert run.plan.env.kwargs == {"map_name": "8x8"}
    assert run.workers.spec.input_shape == (64,)
    plan = plans.from_options("FrozenLake-v1", None, {"env": {"kwargs": {"map_name": "8"}}})
    assert plan.env.kwargs == {"map_name": "8"}


def test_a_flag_adds_to_the_tasks_own_and_wins(capsys: pytest.CaptureFixture[str]) -> None:
    table = presets.task_table("FrozenLake-v1")
    table["env"]["kwargs"] = {"is_slippery": True, "map_name": "8x8"}
    flags = {"env": {"kwargs": {"is_slippery": False}}}
    plan = plans.resolve("FrozenLake-v1", flags, table=table)
    assert plan.env.kwargs == {"is_slippery": False, "map_name": "8x8"}
    assert plan.sources["env.kwargs.is_slippery"] == "flag"
    assert plan.sources["env.kwargs.map_name"] == "task FrozenLake-v1"
    assert call("train", "FrozenLake-v1", "--env.kwargs.map_name=8x8", "--print-config") == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "kwargs" in line)
    assert line.split() == ["env.kwargs.map_name", '"8x8"', "flag"]


@pytest.mark.parametrize(
    ("task", "words", "mentions"),
    [
        ("breakout", ["--env.kwargs.mode=1"], ["Atari", "--env.kwargs"]),
        ("snake", ["--env.kwargs.size=9"], ["Snake", "--env.board"]),
        ("FrozenLake-v1", ["--env.kwargs.is_slipery=false"], ["is_slipery", "is_slippery"]),
        ("FrozenLake-v1", ["--env.kwargs.map_name=9x9"], ["FrozenLake-v1", "9x9"]),
        ("FrozenLake-v1", ["--env.kwargs.render_mode=human"], ["render_mode"]),
        ("FrozenLake-v1", ["--env.kwargs=1"], ["--env.kwargs", "false"]),
        ("FrozenLake-v1", ["--dqn.lr.x=1"], ["--dqn.lr", "is not a number"]),
        ("FrozenLake-v1", ["--env.kwargs.max_episode_steps=x"], ["max_episode_steps"]),
    ],
)
def test_what_it_does_not_take_is_refused(
    task: str, words: list[str], mentions: list[str], capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    assert call("train", task, *words, "--out", tmp_path / "run", "--steps=100") == 2
    assert_told(capsys.readouterr().err, *mentions)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "value", [np.float32(1.0), {1: 2}, object(), float("nan"), json.loads("[" * 10 + "]" * 10)]
)
def test_only_plain_values_are_taken(value: Any) -> None:
    with pytest.raises(mh.BadRequest, match=r"env.kwargs.desc .* is not a plain value"):
        plans.from_options("FrozenLake-v1", None, {"env": {"kwargs": {"desc": value}}})


def test_a_function_has_its_arguments_already() -> None:
    with pytest.raises(mh.BadRequest, match="function"):
        plans.from_options(lambda: None, None, {"env": {"kwargs": {"a": 1}}})


def test_code_named_by_an_argument_needs_a_yes(tmp_path: Path) -> None:
    plan = plans.from_options(
        "FrozenLake-v1", None, {"env": {"kwargs": {"desc": [{"env_id": "module:Env-v0"}]}}}
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(plans.to_json(plan)))
    with pytest.raises(mh.BadRequest, match="module:Env-v0"):
        plans.from_json(path, allow_code=False)
    assert plans.from_json(path, allow_code=True).env == plan.env


def test_an_environment_in_place_of_a_function_is_refused() -> None:
    import gymnasium

    with pytest.raises(mh.BadRequest) as caught:
        mh.train(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]
    assert 'mh.train(lambda: gymnasium.make("CartPole-v1"))' in caught.value.remedy
    with pytest.raises(mh.BadRequest, match="of type int"):
        mh.train(3)  # type: ignore[arg-type]
