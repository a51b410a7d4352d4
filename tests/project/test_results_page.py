"""The results page and the README's figures are those of benchmarks/results, of now."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import results_page

    return results_page


def test_the_page_is_up_to_date(results_page: ModuleType) -> None:
    assert not results_page.stale(results_page.PAGE, results_page.page()), "run `make results`"


def test_the_readme_is_up_to_date(results_page: ModuleType) -> None:
    assert not results_page.stale(results_page.README, results_page.readme()), "run `make results`"


def test_every_row_names_commit_date_and_machine(results_page: ModuleType) -> None:
    for name, make in results_page.TABLES.items():
        table = make()
        assert table.rows, f"{name} is empty"
        for row in table.rows:
            commit, date, machine, _ = row.origin.cells()
            assert commit.startswith("`")
            assert date.startswith("20")
            assert machine
            assert len(row.cells) == len(table.columns), f"{name}: {row.cells}"


def test_a_row_has_the_date_that_its_file_has(results_page: ModuleType) -> None:
    """The commit that was measured may be a day older."""
    table = results_page.TABLES["campaigns"]()
    files = (BENCHMARKS / "results" / f"soak-{name}.json" for name in ("kills", "faults"))
    dates = [json.loads(path.read_text())["date"] for path in files]
    assert [row.origin.cells()[1] for row in table.rows] == dates


def test_every_file_of_results_is_on_the_page(results_page: ModuleType) -> None:
    """By its name, or by the script of its name that made it."""
    sources = "".join(path.read_text() for path in BENCHMARKS.glob("results_*"))
    page = results_page.page()
    for path in (BENCHMARKS / "results").glob("*.json"):
        is_copy = path.stem.endswith(("-summary", "-trials"))  # of a run that is there already
        assert path.name in page or f'"{path.stem}"' in sources or is_copy, f"{path} is not shown"


def test_the_page_needs_no_history(
    results_page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """commits.json has all that rows need: the page is the same in a shallow clone."""
    commits = sys.modules["commits"]
    monkeypatch.setattr(commits, "git", lambda *words: pytest.fail(f"git {' '.join(words)}"))
    assert results_page.page()


@pytest.mark.usefixtures("results_page")
def test_a_changed_value_or_line_of_code_marks_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    commits, provenance = sys.modules["commits"], sys.modules["provenance"]
    parts = provenance.parts_of(commits.PRESENT, "dqn", "cartpole")
    presets = ("recipes/dqn", "tasks/cartpole", "tasks/_gym")
    then = {f"code {part}": commits.code(commits.PRESENT, part) for part in parts}
    then |= {name: commits.preset(commits.PRESENT, name) for name in presets}
    then["lr end"] = commits.lr_end(commits.PRESENT)
    monkeypatch.setitem(commits.known(), "then", then)
    origin = provenance.Origin(("then",), "a machine", parts, "cartpole", "dqn")
    true_text = commits.text
    added: dict[str, str] = {}

    def text(commit: str, path: str) -> str:
        assert commit == commits.PRESENT, "the past is in the file"
        return added.get(path.rpartition("/")[2], "") + str(true_text(commit, path))

    def mark_with(name: str, line: str) -> str:
        added.clear()
        added[name] = line
        provenance.values.cache_clear()
        return ", ".join([origin.mark(), "values" if origin.values_changed() else ""])

    monkeypatch.setattr(commits, "text", text)
    try:
        assert "code" not in mark_with("dqn.py", "# a comment\n")
        for name in ("dqn.py", "serial.py", "gym.py", "returns.py", "lanes.py", "learner.py"):
            assert "code" in mark_with(name, "more = 1\n"), name
        for name in ("ppo.py", "gossip.py", "atari.py", "doctor.py"):  # of other rows, or of none
            assert "code" not in mark_with(name, "more = 1\n"), name
        assert "values" not in mark_with("dqn.py", "")
        assert "values" in mark_with("schedules.py", "LR_END = 0.5\n")
        assert "values" not in mark_with("cartpole.toml", "# a comment\n")
        assert "values" not in mark_with("cartpole.toml", "unused.value = 3\n")
        assert "values" in mark_with("cartpole.toml", "more = 1\n")
    finally:
        provenance.values.cache_clear()


def test_what_is_older_than_its_recipe_is_neither_shown_nor_kept(results_page: ModuleType) -> None:
    assert not results_page.dropped(), "measure them again, or take them out of benchmarks/results"
