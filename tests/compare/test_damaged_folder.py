"""A comparison's folder that was damaged or tampered with: sentences, and nothing outside."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from manyhands.compare import (
    findings,
    folder,
    groups,
    matrix,
    report,
    results,
    statistics,
    study,
    tables,
)
from manyhands.types import BadRequest
from support import made_up_runs
from support.command_line import assert_told, call, contents
from support.mutations import mutated

Capture = pytest.CaptureFixture[str]
OWN = {"recipes": "dqn,hogwild", "workers": "1,2", "seeds": "2"}
WORDS = ["cartpole", "--recipes=dqn,hogwild", "--workers=1,2", "--seeds=2", "--draw"]


@pytest.fixture(scope="module", params=["solve", "throughput"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / request.param
    made_up_runs.write(out, study.read("cartpole", {**OWN, "metric": request.param}, {}))
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / made.name)


@cache
def matrix_of(metric: str) -> tuple[study.Study, list[matrix.Cell]]:
    asked = study.read("cartpole", {**OWN, "metric": metric}, {})
    return asked, matrix.cells(asked)


def told(out: Path) -> str:
    """All that is said of a folder but its figures, which take seconds."""
    (asked, cells), place = matrix_of(out.name), folder.Folder(out)
    place.check(cells)
    invocations = folder.invocations(place)
    comparison = groups.compared(asked, results.read(place, cells), cores=2)
    tables.write(out, comparison, invocations)
    findings.findings(comparison)
    return report.page(comparison, [], invocations)


def test_damaged_files_are_told_of_and_not_believed(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = statistics.resampled
    monkeypatch.setattr(statistics, "resampled", lambda values, rng: drawn(values, rng, 10))
    rng = random.Random(5)
    before = told(out)
    files = [p for p in sorted(out.rglob("*.json*")) if p.parent != out or p.name[0] == "s"]
    assert len({path.name for path in files}) > 3
    refused = 0
    for _ in range(100):
        path = rng.choice(files)
        good = path.read_bytes()
        lines = good.splitlines() if path.suffix == ".jsonl" else [good]
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutated(json.loads(lines[at]), rng, arrays=False)[0]).encode()
        path.write_bytes(b"\n".join(lines) if rng.random() < 0.9 else good[: rng.randrange(99)])
        with suppress(BadRequest):
            refused += 1  # it holds a cell with other options
            told(out)
            refused -= 1
        path.write_bytes(good)
    assert 0 < refused < 50
    assert told(out) == before


def test_a_damaged_outcome_is_drawn_by_the_command(made: Path, out: Path, capsys: Capture) -> None:
    if made.name == "throughput":
        pytest.skip("once is enough")
    damaged = sorted((out / "cells").glob("*/summary.json"))
    damaged[0].write_text('{"time_split": []}')
    damaged[1].write_text("{")
    for number, path in enumerate(sorted((out / "outcomes").iterdir())[2:4]):
        path.write_text(["[]", '{"outcome": 3}'][number])
    assert call("compare", *WORDS, "--out", out) == 0
    assert "its files are damaged" in (out / "report.html").read_text()
    capsys.readouterr()


@pytest.mark.parametrize("name", ["cells", "outcomes", "logs", ".lock"])
def test_links_are_not_followed(name: str, out: Path, tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("mine")
    if (out / name).is_dir():
        shutil.rmtree(out / name)
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(mine if name != ".lock" else mine / "made")
    before = contents(mine)
    assert call("compare", *WORDS, f"--metric={out.name}", "--out", out) == 2
    assert_told(capsys.readouterr().err, name, "symbolic link")
    assert contents(mine) == before


@pytest.mark.parametrize("name", ["cells.csv", "report.html", "comparison.json"])
def test_what_is_written_replaces_links(name: str, out: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(tmp_path / "mine")
    (asked, cells), place = matrix_of(out.name), folder.Folder(out)
    comparison = groups.compared(asked, results.read(place, cells), cores=2)
    tables.write(out, comparison, [])
    report.write(place.report, comparison, [], [])
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (out / name).is_symlink()


def test_no_cell_of_a_table_is_a_formula() -> None:
    risky = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1"]
    rows = [{"name": text, "reason": "a = b", "value": -1.5, "text": "-2e3"} for text in risky]
    lines = tables.as_csv(rows).splitlines()
    for text in risky:
        assert f"'{text}".splitlines()[0] in tables.as_csv(rows)
    assert lines[1] == "'=1+1,a = b,-1.5,-2e3"
