"""What the house does in one place: sizes, locks of folders, readers of metrics, the processor."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from manyhands.config import runfiles
from manyhands.runs import folder_lock, metrics_reading
from manyhands.types import machine
from manyhands.types.sizes import human

SRC = Path(__file__).parents[2] / "src" / "manyhands"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e6, "2.5 MB"), (1.2e12, "1,200.0 GB")],
)
def test_sizes_are_read_by_people(size: float, text: str) -> None:
    assert human(size) == text


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (r'"GB"|1e9:', {"types/sizes.py"}),
        (r"flock\(", {"runs/folder_lock.py", "backends/processes/lock.py", "maths/compiled.py"}),
        (r'= "metrics\.jsonl"', {"runs/metrics.py"}),
        (r"/proc/cpuinfo", {"types/machine.py"}),
    ],
)
def test_each_is_written_once(pattern: str, home: set[str]) -> None:
    files = [file for file in SRC.rglob("*.py") if re.search(pattern, file.read_text())]
    assert {str(file.relative_to(SRC)) for file in files} == home


def test_a_folder_is_locked_by_one(tmp_path: Path) -> None:
    first, second = (folder_lock.opened(tmp_path) for _ in range(2))
    assert folder_lock.taken(first)
    assert folder_lock.is_held(second)
    assert not folder_lock.taken(second)
    folder_lock.release(first)
    assert not folder_lock.is_held(second)
    os.close(second)


def test_damaged_lines_of_metrics_are_left_out(tmp_path: Path) -> None:
    good = '{"agent_steps": 5, "wall_s": 0.5, "charts/SPS": 10, "other": 1}'
    lines = [good, "", "[1]", '{"agent_steps": 5}', good.replace("10", "1e99"), good[:-9]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    with runfiles.opened(tmp_path) as folder:
        rows = list(metrics_reading.rows(folder, ["charts/SPS", "charts/none"]))
    assert rows == [{"agent_steps": 5, "wall_s": 0.5, "charts/SPS": 10}]


def test_the_processor_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nmodel name\t: Some CPU\nflags\t: a b\n")
    monkeypatch.setattr(machine, "CPUINFO", file)
    assert machine.processor() == "Some CPU"
    assert machine.cpuinfo("flags") == "a b"
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
    assert machine.processor()
