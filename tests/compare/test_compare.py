"""A comparison: what is refused, what runs in which order, and that a kill changes nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from manyhands.cli.arguments import TrainFlags, read
from manyhands.compare import display, matrix, study
from manyhands.config import plans
from manyhands.types import BadRequest
from support.command_line import assert_told, call, command, start

Capture = pytest.CaptureFixture[str]
TINY = [
    "--threads=1", "--envs-per-worker=4", "--network.hidden=16,16", "--memory.capacity=500",
    "--dqn.warmup-steps=100", "--dqn.batch-size=16", "--dqn.steps-per-update=8",
]  # fmt: skip
STUDY = """
task = "toy/identity"
recipes = ["dqn", "hard"]
workers = [1, 2]
seeds = [1, 2]
steps = 1500

[variants.dqn]
recipe = "dqn"
threshold = 0.1

[variants.hard]
recipe = "double-dqn"
threshold = 1e9
"""
OF_TIME = {
    "wall_s", "seconds_to_solve", "seconds_per_episode", "agent_steps_per_s", "updates_per_s",
    "sharing", "bottleneck", "peak_pss_mb",
}  # fmt: skip


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def timeless(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k not in OF_TIME} for row in rows]


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("study") / "study.toml"
    file.write_text(STUDY)
    return ["compare", f"--config={file}", *TINY]


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    done = command(*words, f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "not applicable: dqn, 2 workers" in done.stdout
    return out


# --- What is asked for --------------------------------------------------------------------------


def made(*texts: str, **own: Any) -> study.Study:
    return study.read("cartpole", {"recipes": ",".join(texts), **own}, {})


def test_seeds_are_a_number_or_a_list() -> None:
    assert made("dqn", seeds="3").seeds == (1, 2, 3)
    assert made("dqn", seeds="3,7").seeds == (3, 7)
    assert made("dqn", seeds="7,").seeds == (7,)
    assert made("dqn", workers="4").workers == (4,)


def test_an_environments_arguments_reach_every_cell(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('[all.env.kwargs]\nmap_name = "8x8"\nis_slippery = true\n')
    own = {"recipes": "dqn", "config": str(tmp_path / "study.toml"), "steps": 100, "threshold": 1.0}
    sections = {"env": {"kwargs": {"is_slippery": False}}}
    (cell, *_) = matrix.cells(study.read("FrozenLake-v1", own, sections))
    assert cell.plan is not None
    assert cell.plan.env.kwargs == {"map_name": "8x8", "is_slippery": False}
    again = read(cell.words[1:], TrainFlags, sections=True)
    plan = plans.resolve("FrozenLake-v1", {"run": {}, "env": again.sections["env"]})
    assert plan.env.kwargs == cell.plan.env.kwargs


def test_cells_that_make_no_sense_are_known_before_anything_runs() -> None:
    asked = made("dqn", "hogwild", workers="1,2", seeds="2")
    cells = matrix.cells(asked)
    assert len(cells) == 8
    refused = {(cell.entry, cell.workers) for cell in cells if cell.refusal}
    assert refused == {("dqn", 2)}
    assert all("serial" in cell.refusal for cell in cells if cell.refusal)
    assert {cell.name for cell in matrix.in_order(asked, cells)} == {
        cell.name for cell in cells if not cell.refusal
    }


def test_the_order_is_shuffled_by_a_seed_and_stages_come_first() -> None:
    asked = made("hogwild", "locked", "downpour", workers="1,2", seeds="3")
    cells = matrix.cells(asked)
    order = [cell.name for cell in matrix.in_order(asked, cells)]
    assert order != [cell.name for cell in cells]
    assert order == [cell.name for cell in matrix.in_order(asked, cells)]
    other = study.read("cartpole", {"recipes": "hogwild,locked,downpour", "order": 2}, {})
    assert order != [cell.name for cell in matrix.in_order(other, cells)]


def test_stages_come_first(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'task = "cartpole"\nrecipes = ["hogwild", "locked"]\nworkers = [1, 2]\nseeds = 2\n'
        'first = [{ workers = 2, seed = 1 }, { recipe = "locked" }]\n'
    )
    asked = study.read("", {"config": str(file)}, {})
    order = [c.name for c in matrix.in_order(asked, matrix.cells(asked))]
    assert set(order[:2]) == {"hogwild-w2-s1", "locked-w2-s1"}
    assert set(order[2:5]) == {"locked-w1-s1", "locked-w1-s2", "locked-w2-s2"}


def test_only_the_cells_that_a_study_chooses(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    text = 'task = "cartpole"\nrecipes = ["dqn", "hogwild"]\nworkers = [1, 2, 4]\nseeds = 1\n'
    file.write_text(text + 'only = [{ recipe = "dqn", workers = 1 }, { workers = [2, 4] }]\n')
    asked = study.read("", {"config": str(file)}, {})
    order = matrix.in_order(asked, matrix.cells(asked))
    assert {cell.name for cell in order} == {"dqn-w1-s1", "hogwild-w2-s1", "hogwild-w4-s1"}
    file.write_text(text + "only = [{ seed = 9 }]\n")
    with pytest.raises(BadRequest, match="no cell"):
        matrix.cells(study.read("", {"config": str(file)}, {}))


def test_a_section_goes_to_the_recipes_that_have_it() -> None:
    asked = study.read("cartpole", {"recipes": "dqn,a3c"}, {"dqn": {"lr": "1e-2"}})
    settings = {entry.name: entry.settings for entry in asked.entries}
    assert settings["dqn"]["dqn"]["lr"] == "1e-2"
    assert "dqn" not in settings["a3c"]


def test_busy_processes_count_shards() -> None:
    entry = study.read(
        "cartpole", {"recipes": "downpour", "workers": "1,2", "seeds": "1"},
        {"parameter_server": {"shards": "4"}},
    )  # fmt: skip
    assert [cell.processes for cell in matrix.cells(entry)] == [1, 6]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["compare"], "task"),
        (["compare", "cartpole"], "recipes"),
        (["compare", "cartpole", "--recipes=hogwald"], "hogwild"),
        (["compare", "cartpole", "--recipes=dqn", "--workers=0"], "--workers"),
        (["compare", "cartpole", "--recipes=dqn", "--workers=two"], "--workers"),
        (["compare", "cartpole", "--recipes=dqn", "--seeds=0"], "--seeds"),
        (["compare", "cartpole", "--recipes=dqn", "--workers=2"], "serial"),
        (["compare", "cartpole", "--recipes=dqn", "--a2c.lr=1"], "a2c"),
        (["compare", "cartpole", "--recipes=dqn", "--dqn.lr=fast"], "--dqn.lr"),
        (["compare", "cartpole", "--recipes=dqn", "--dqn.rate=1"], "--dqn.rate"),
        (["compare", "cartpole", "--recipes=dqn", "--steps=9", "--minutes=1"], "--minutes"),
        (["compare", "cartpole", "--recipes=dqn", "--metric=speed"], "--metric"),
        (["compare", "cartpole", "--recipes=dqn", "--metric=throughput", "--steps=9"], "--steps"),
        (["compare", "toy/identity", "--recipes=dqn"], "threshold"),
        (["compare", "--config=nowhere.toml"], "nowhere.toml"),
        (["compare", "cartpole", "--recipes=dqn", "--draw"], "--draw"),
    ],
)
def test_bad_requests_end_before_any_work(
    given: list[str], told: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*given) == 2
    assert_told(capsys.readouterr().err, told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "recipe = 1",
        "only = [{ task = 'x' }]\nrecipes = ['dqn']\ntask = 'cartpole'",
        "first = [3]\nrecipes = ['dqn']\ntask = 'cartpole'",
        "x = = 2",
    ],
)
def test_a_bad_file_is_refused(text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "s.toml").write_text(text)
    assert call("compare", f"--config={tmp_path / 's.toml'}") == 2
    assert_told(capsys.readouterr().err)


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    assert call("compare", "cartpole", "--recipes=dqn", f"--out={tmp_path}") == 2
    assert_told(capsys.readouterr().err, "comparison")
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


# --- What is seen meanwhile ---------------------------------------------------------------------


def test_the_forecast_is_the_limit_then_what_was_seen() -> None:
    first, *others = matrix.cells(made("hogwild", "locked", workers="1", seeds="2"))
    forecast = display.Forecast(limit_s=100.0)

    def left_s(cells: list[matrix.Cell], spent_s: float) -> float | None:
        """The first of them has run for `spent_s`."""
        return forecast.left_s([(cell, spent_s * (cell is cells[0])) for cell in cells])

    assert left_s([first, *others], spent_s=30.0) == 370.0
    forecast.add(first, 10.0)
    assert left_s(others, spent_s=0.0) == 30.0  # others as what was seen
    forecast.add(others[-1], 20.0)
    assert left_s(others, spent_s=4.0) == (10.0 - 4.0) + 20.0 + 20.0
    assert left_s([], spent_s=0.0) == 0.0
    assert display.Forecast(limit_s=0.0).left_s([(first, 1.0)]) is None


def test_the_picture_shows_the_whole_and_the_cell_at_work(capsys: Capture) -> None:
    asked = made("hogwild", workers="1", seeds="3", minutes=1.0)
    cells = matrix.cells(asked)
    shown = display.Display(asked)
    shown.begin(cells[1:], total=3)
    shown.started(cells[1])
    assert "hogwild, 1 worker, seed 2; 2:00 left in all" in capsys.readouterr().out
    assert "starting" in display.picture(shown)[2]
    status = {"share_done": 0.5, "return_mean_100": 12.3, "episodes": 7, "agent_steps": 4000}
    shown.look(cells[1], status)
    first, now, how = display.picture(shown)
    assert "1 of 3" in first
    assert "seed 2" in now
    assert "50% of its limit   return 12.3   7 episodes   4,000 agent steps" in how
    shown.ended(cells[1], {"outcome": "failed", "reason": "it fell over"})
    assert "failed: it fell over" in capsys.readouterr().out
    assert "2 of 3" in display.picture(shown)[0]
    assert "1 failed" in display.picture(shown)[0]


# --- What runs ----------------------------------------------------------------------------------


def test_every_cell_has_an_outcome(whole: Path) -> None:
    rows = read_csv(whole / "cells.csv")
    assert {(r["name"], r["workers"], r["outcome"]) for r in rows} == {
        ("dqn", "1", "solved"), ("hard", "1", "not solved"),
        ("dqn", "2", "not applicable"), ("hard", "2", "not applicable"),
    }  # fmt: skip
    assert len(rows) == 8
    whole_json = json.loads((whole / "comparison.json").read_text())
    assert [row["cell"] for row in whole_json["cells"]] == [row["cell"] for row in rows]
    assert whole_json["sittings"][0]["versions"]["torch"]


def test_ended_cells_are_not_run_again_nor_with_other_options(
    whole: Path, words: list[str], capsys: Capture
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (whole / "outcomes").iterdir()}
    assert call(*words, f"--out={whole}") == 0
    assert "4 of 4 cells ended earlier" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (whole / "outcomes").iterdir()}
    assert call(*words, f"--out={whole}", "--dqn.lr=0.5") == 2
    assert_told(capsys.readouterr().err, "other options", "dqn.lr")


def test_killed_and_resumed_equals_undisturbed(
    whole: Path, words: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*words, f"--out={out}")
    wait_for(lambda: len(list(out.glob("outcomes/*"))) == 1, process)
    wait_for(lambda: len(list(out.glob("cells/*/config.json"))) == 2, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert children
    assert not psutil.wait_procs(children, timeout=20)[1]  # no cell outlives its comparison
    first = next(out.glob("outcomes/*"))
    kept = first.stat().st_mtime_ns, first.read_bytes()
    done = command(*words, f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert (first.stat().st_mtime_ns, first.read_bytes()) == kept
    mine, theirs = read_csv(out / "cells.csv"), read_csv(whole / "cells.csv")
    assert timeless(mine) == timeless(theirs)
    numbers = [
        [row for row in read_csv(path / "estimates.csv") if row["measure"].startswith(COUNTED)]
        for path in (out, whole)
    ]
    assert numbers[0]
    assert numbers[0] == numbers[1]


COUNTED = ("episodes_to", "agent_steps_to", "staleness", "best_return")


@pytest.fixture
def long(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A comparison of three cells that would take an hour each, two side by side."""
    out = tmp_path / "out"
    process = start(
        "compare", "toy/identity", "--recipes=dqn", "--workers=1", "--seeds=3", "--minutes=60",
        "--threshold=1e9", "--at-once=2", f"--out={out}", *TINY,
    )  # fmt: skip
    yield process, out
    process.kill()
    process.communicate()


def test_ctrl_c_ends_the_cells_cleanly_and_says_how_to_continue(
    long: tuple[subprocess.Popen[str], Path], capsys: Capture
) -> None:
    process, out = long
    wait_for(lambda: len(list(out.glob("cells/*/status.json"))) == 2, process)
    held = call("compare", "toy/identity", "--recipes=dqn", "--threshold=1", f"--out={out}")
    assert held == 2
    assert_told(capsys.readouterr().err, "in use")
    os.kill(process.pid, signal.SIGINT)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with: manyhands compare toy/identity" in told
    cells = list((out / "cells").iterdir())
    assert len(cells) == 2  # there was no room for the third
    assert all(list((cell / "checkpoints").iterdir()) for cell in cells)
    assert not list((out / "outcomes").iterdir())  # they are run again, from their first step


def test_a_cell_that_fails_is_kept_with_its_reason(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    asked = ["compare", "toy/nan", "--recipes=dqn", "--workers=1", "--seeds=1", "--steps=2000"]
    asked += ["--threshold=1e9", f"--out={out}", *TINY]
    assert call(*asked) == 0
    assert "failed: " in capsys.readouterr().out
    (row,) = read_csv(out / "cells.csv")
    assert row["outcome"] == "failed"
    assert "NaN" in row["reason"]
    assert "exit code 1" in row["reason"]
    assert "NaN" in (out / "report.html").read_text()


def test_throughput_of_workers_that_wait(tmp_path: Path) -> None:
    """Two workers on the waiting environment, measured while both were at work."""
    out = tmp_path / "out"
    done = command(
        "compare", "toy/slow", "--metric=throughput", "--recipes=hogwild", "--workers=1,2",
        "--seeds=1", "--minutes=0.03", f"--out={out}", *TINY, "--within-minutes=5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["cell"]: row for row in read_csv(out / "cells.csv")}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "hogwild-w1-s1": "measured", "hogwild-w2-s1": "measured",
    }  # fmt: skip
    for name, row in rows.items():
        if row["outcome"] == "measured":
            first, last = json.loads((out / "outcomes" / f"{name}.json").read_text())["window"]
            seconds = last["wall_s"] - first["wall_s"]
            assert seconds >= 60 * 0.03
            rate = (last["agent_steps"] - first["agent_steps"]) / seconds
            assert float(row["agent_steps_per_s"]) == pytest.approx(rate)
            assert rate > 0
    names = {path.name for path in (out / "figures").iterdir()}
    assert {"agent_steps_per_s.svg", "compute_communicate.png", "sharing.svg"} <= names
