"""Learning curves: the picture shows what was measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import manyhands as mh
from manyhands.viewing import plot
from support.command_line import SMALL, assert_told, call

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plot") / "one"
    options = {**SMALL, "evaluation": {"period_steps": 100, "episodes": 1}}
    return mh.train("cartpole", out=path, **options).path


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained, tmp_path / "one")


def inked(path: Path) -> int:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return len(set(picture.convert("RGB").get_flattened_data()))


def test_curves_of_one_and_of_several(run: Path, capsys: Capture) -> None:
    shutil.copytree(run, "two")
    assert call("plot", run) == 0
    assert call("plot", run, "two") == 0
    assert call("plot", run, "two", "--out=deep/in/both.png") == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [str(run / "curves.png"), "curves.png", "deep/in/both.png"]
    assert all(inked(Path(path)) > 20 for path in told)


def test_what_is_plotted_is_what_was_measured(run: Path) -> None:
    curves = plot.read(run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [r[plot.EPISODE] for r in rows if plot.EPISODE in r]
    assert sorted(curves.series[plot.EPISODE].values) == sorted(returns)
    assert curves.series[plot.EVALUATION].steps == [100, 200, 300]
    assert curves.series[plot.AVERAGE].minutes[-1] == pytest.approx(rows[-1]["wall_s"] / 60)
    assert curves.name == "one"


@pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n[1]\n", '{"agent_steps": 1}\n'])
def test_metrics_that_are_none(text: str, run: Path, capsys: Capture) -> None:
    (run / "metrics.jsonl").write_text(text)
    assert call("plot", run) == 2
    assert "no metrics" in capsys.readouterr().err
    (run / "metrics.jsonl").unlink()
    assert call("plot", run) == 2


def test_a_line_cut_short_is_left_out(run: Path) -> None:
    whole = plot.read(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"agent_steps": 310, "wall')
    assert plot.read(run) == whole


def test_a_run_may_be_called_by_an_emoji(run: Path, capsys: Capture) -> None:
    shutil.copytree(run, "agent 🤖")
    assert call("plot", "agent 🤖") == 0  # a warning would be an error
    assert capsys.readouterr().err == ""


BAD = ["x.nonsense", "x.txt", ".", "/proc/x.png", "/proc/new/x.png", "/dev/null", "n" * 300]


@pytest.mark.parametrize("out", BAD)
def test_a_picture_it_cannot_write_is_refused_first(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plot, "read", None)  # nothing is read
    assert call("plot", "run", f"--out={out}") == 2
    assert_told(capsys.readouterr().err, f"--out {out}")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_may_have_a_format_and_a_new_folder(tmp_path: Path) -> None:
    for name in ("a.png", "a.PNG", "a", "new/folder/a.svg"):
        plot.check(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
