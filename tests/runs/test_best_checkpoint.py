"""Which checkpoint is best: said at the end, where it is not played, and where there is none."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import manyhands as mh
from manyhands.runs.evaluate import Evaluation
from support.command_line import SMALL, assert_told, call

Capture = pytest.CaptureFixture[str]


class Trained(NamedTuple):
    path: Path
    said: str
    evaluations: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run whose second evaluation, of three, was the best."""
    path, scores = tmp_path_factory.mktemp("best") / "run", iter([118.0, 212.0, 118.5])
    options = SMALL | {"quiet": False, "evaluation": {"period_steps": 100, "episodes": 2}}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setattr(
            "manyhands.runs.evaluate.evaluate", lambda *_, **__: Evaluation([next(scores)] * 2)
        )
        run = mh.Run("cartpole", out=path, **options)
        seen = [one for metrics in run for one in metrics["evaluations"]]
    return Trained(path, said.getvalue(), seen)


def test_a_run_says_at_its_end_which_is_best_and_how_to_play_it(trained: Trained) -> None:
    assert "best checkpoint: step 200 with 212.0 over 2 episodes" in trained.said
    assert "the newest evaluation: 118.5" in trained.said
    assert f"manyhands watch {trained.path} --best" in trained.said
    summary = json.loads((trained.path / "summary.json").read_text())
    assert summary["best_evaluation"] == {"agent_steps": 200, "mean": 212.0}


def test_an_observer_sees_every_evaluation(trained: Trained) -> None:
    seen = [(one["agent_steps"], one["mean"], one["best"]) for one in trained.evaluations]
    assert seen == [(100, 118.0, True), (200, 212.0, True), (300, 118.5, False)]


@pytest.mark.parametrize(
    "words", [["evaluate", "--episodes=1"], ["record", "--seconds=0.1", "--out=film.gif"]]
)
def test_that_there_is_a_better_one_is_said(
    words: list[str],
    trained: Trained,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(words[0], trained.path, *words[1:]) == 0
    told = capsys.readouterr().err
    assert "better checkpoint: step 200 scored 212.0, the newest evaluation was 118.5" in told
    assert "--best" in told


def test_it_is_not_said_of_the_best(trained: Trained, capsys: Capture) -> None:
    assert mh.load(trained.path, best=True).step == 200
    assert capsys.readouterr().err == ""
    assert mh.load(trained.path).step == 300
    assert "best=True" in capsys.readouterr().err


def test_a_resumed_run_knows_its_best(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    assert mh.resume(run, steps=320, quiet=True).summary["best_evaluation"]["agent_steps"] == 200


@pytest.mark.parametrize("command", ["evaluate", "record", "watch"])
def test_where_there_is_none_it_says_why(command: str, tmp_path: Path, capsys: Capture) -> None:
    mh.train("cartpole", out=tmp_path / "run", **SMALL | {"steps": 60})
    assert call(command, tmp_path / "run", "--best") == 2
    assert_told(capsys.readouterr().err, "never evaluated", "--evaluation.period-steps")


# --- In a notebook ------------------------------------------------------------------------------


def test_names_and_texts_help_in_a_notebook(trained: Trained) -> None:
    assert {"train", "resume", "load", "Run", "Policy"} <= set(dir(mh))
    assert not [name for name in dir(mh) if name in ("annotations", "TYPE_CHECKING", "Any")]
    told = repr(mh.load(trained.path, best=True))
    assert told == "<Policy of cartpole by dqn: step 200, observations (4,), 2 actions>"
    run = mh.Run("cartpole", out=trained.path.parent / "other", **SMALL)
    assert "<Run of cartpole by dqn: 0 of 300 agent steps, no episode ended, in" in repr(run)
    run.finish()
    assert "300 of 300 agent steps, return " in repr(run)
