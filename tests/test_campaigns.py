"""A few runs of each campaign; all of them by hand: make soak-faults, make soak-kills."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import soak_faults
import soak_kills
from misbehaving import KINDS


def assert_right(cells: dict[str, Any]) -> None:
    assert cells
    assert not {name: cell["wrong"] for name, cell in cells.items() if cell["wrong"]}


def test_some_of_the_misbehaving_environments() -> None:
    """With one worker those that end no process; with two, some of those that do."""
    chance = random.Random(2)
    harmless = [kind for kind in KINDS if not kind.leaves and kind.when != "close"]
    leaving = [kind for kind in KINDS if kind.leaves and kind.does != "hangs"]
    cases = [(kind, 1) for kind in chance.sample(harmless, 6)]
    assert_right(soak_faults.campaign([*cases, (chance.choice(leaving), 2)]))


def test_some_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.runs.schedule.REPORT_PERIOD_S", 1.0)  # the campaign sets its own
    recipe = random.Random(3).choice(["apex", "downpour", "locked"])
    assert_right(soak_kills.campaign([recipe], seconds=3.0, seed=1))
