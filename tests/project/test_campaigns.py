"""A few runs of each campaign; all of them by hand: make soak-faults, make soak-kills."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import busy
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


def test_a_process_that_has_just_gone_counts_for_nothing() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    row = {"role": "worker", "id": 0, "pid": gone.pid, "agent_steps": 7}
    workers = SimpleNamespace(process_table=lambda: [row], updates=1)
    killer = soak_kills.Killer(cast(Any, SimpleNamespace(workers=workers)), random.Random(1))
    for _ in range(20):
        killer._strike(0.0)
    assert not killer.sent
    assert not killer.killed
    assert not killer._stopped


def test_busy_records_its_whole_command_and_every_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "busy.json"
    words = ["busy.py", "--before", "../other checkout/src", "--rounds", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(busy, "steps_per_s", lambda *_: 10.0)
    busy.main()
    found = json.loads(out.read_text())
    whole = f"python benchmarks/busy.py --before '../other checkout/src' --rounds 2 --out {out}"
    assert found["command"] == whole
    assert set(found["tasks"]) == set(busy.TASKS)
    assert {task["measured by"] for task in found["tasks"].values()} == {whole}
    assert len(busy.TASKS) == 6
