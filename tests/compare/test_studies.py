"""The studies of benchmarks/studies/: every cell can run, and what their tables make of results."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import ModuleType

import pytest

from manyhands.compare import matrix, study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "benchmarks" / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_cell_that_is_not_left_out_can_run(path: Path) -> None:
    asked = study.read("", {"config": str(path)}, {})
    cells = matrix.cells(asked)
    refused = {cell.refusal for cell in cells if cell.refusal} - {matrix.NOT_ASKED}
    assert all("serial does not" in why for why in refused), refused
    order = matrix.in_order(asked, cells)
    assert {cell.entry for cell in order} == {entry.name for entry in asked.entries}
    if asked.first:  # what comes first is there
        assert matrix._stage(asked, order[0]) == 0


def test_the_makefile_names_every_study() -> None:
    head = (ROOT / "Makefile").read_text().partition("\n\n")[0]
    listed = head[head.index("make study-NAME") :]
    assert not [path.stem for path in STUDIES if not re.search(rf"\b{path.stem}\b", listed)]


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results_studies

    return results_studies


def test_a_failed_cell_is_counted_and_not_left_out(
    studies: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "RESULTS", tmp_path)
    rows = [
        {"cell": f"dqn-w1-s{seed}", "name": "dqn", "outcome": outcome, "score": score}
        for seed, (outcome, score) in enumerate(
            [("solved", "480"), ("not solved", "300"), ("failed", ""), ("not run", "")]
        )
    ]
    (tmp_path / "study-x").mkdir()
    with (tmp_path / "study-x" / "cells.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    group = studies.cells("x")
    assert studies.solved(group) == "1 of 2, 1 failed"
    assert studies.each(group, "score") == "480 · 300 · –"
    assert studies.over_seeds(group, "score") == "390 (300 to 480)"
    assert studies.over_seeds(group[:1], "score") == "480"
