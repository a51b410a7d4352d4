"""The README: short, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from manyhands.config import presets

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_newcomer_finishes_it() -> None:
    assert len(README.split()) <= 900


def test_every_recipe_is_in_its_table() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| [^|]+ \|$", README, flags=re.MULTILINE)
    assert sorted(rows) == presets.names("recipes")


def test_every_file_it_names_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`", README)
    assert len(named) <= 8
    for path in [ROOT / link for link in links if "://" not in link] + [
        ROOT / "src" / "manyhands" / name for name in named
    ]:
        assert path.exists(), path


def test_knowing_dqn_takes_an_hour() -> None:
    """The files that the README lists, from the algorithm along the data's path."""
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`", README)
    lines = [len((ROOT / "src" / "manyhands" / name).read_text().splitlines()) for name in named]
    assert sum(lines) <= 1_300
