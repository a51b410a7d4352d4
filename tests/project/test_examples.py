"""Every script and the notebook of examples/, run as they stand but for fewer steps."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "first_steps.ipynb"
SCRIPTS = {  # steps, and what must be said with so few
    "train_and_play": (1_000, "one episode: "),
    "own_environment": (2_000, "greedy score: 1.0"),
    "own_network": (1_500, "action on zeros: "),
    "own_algorithm": (1_500, "greedy score: "),
    "compare_strategies": (1_500, "allreduce"),
    "kill_a_worker": (10_000_000, "restarted as incarnation 1"),
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs/ is made here


def test_all_of_them_are_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)
    assert list(EXAMPLES.glob("*.ipynb")) == [NOTEBOOK]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, said = SCRIPTS[name]
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, str(steps)])
    runpy.run_path(path, run_name="__main__")
    assert said in capsys.readouterr().out


def test_notebook(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells in order, in one namespace, as a kernel runs them."""
    monkeypatch.setenv("STEPS", "1000")
    monkeypatch.setenv("MPLBACKEND", "agg")
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    names: dict[str, object] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "clear all outputs before committing"
            exec(compile("".join(cell["source"]), f"{NOTEBOOK}:{cell['id']}", "exec"), names)
    assert "greedy score: " in capsys.readouterr().out
