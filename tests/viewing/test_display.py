"""What a person sees of a run in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import manyhands as mh
from manyhands.viewing import display
from support.command_line import ALONE, SMALL, SMALL_WORDS, command

Capture = pytest.CaptureFixture[str]
METRICS = {
    "agent_steps": 1000,
    "updates": 250,
    "charts/SPS": 1234.0,
    "charts/UPS": 308.0,
    "charts/episodes": 20,
    "charts/epsilon": 0.25,
    "charts/return_mean_100": 12.3,
    "memory_fill": 0.4,
    "time_split": {"worker": {"env": 0.25, "act": 0.1, "gradient": 0.65, "idle": 0.0}},
    "faults": {"restarts": 0, "nonfinite_skipped": 2},
}


# --- Live ---------------------------------------------------------------------------------------


def in_a_terminal(*words: str, cwd: Path) -> tuple[int, str]:
    """The command with a pseudo-terminal for its output."""
    ours, theirs = pty.openpty()
    environment = {**ALONE, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "manyhands", *words],
        stdout=theirs, stderr=theirs, cwd=cwd, env=environment,
    )  # fmt: skip
    os.close(theirs)
    shown = bytearray()

    def drain() -> None:
        try:
            while piece := os.read(ours, 65536):
                shown.extend(piece)
        except OSError:  # how Linux says that the other end is closed
            pass

    reader = threading.Thread(target=drain)
    reader.start()
    code = process.wait(timeout=100)
    reader.join(timeout=10)
    os.close(ours)
    return code, shown.decode()


def test_in_a_terminal(tmp_path: Path) -> None:
    words = [word for word in SMALL_WORDS if word not in ("--quiet", "--steps=300")]
    code, shown = in_a_terminal("train", "cartpole", *words, "--minutes=0.05", "--out=run",
                                cwd=tmp_path)  # fmt: skip
    assert code == 0, shown
    assert shown.count("\x1b[2K") > 20  # lines that were drawn again
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)[-1500:]
    for part in (r"100.0%  █{30}", r"return   \d+\.\d over the last 100   [▁-█]+",
                 r"speed    [\d,]+ steps/s   [\d,]+ updates/s", r"time     \w+ \d+%  ",
                 r"memory   \d+% full   faults: none", r"run: run"):  # fmt: skip
        assert re.search(part, last), (part, last)


def test_in_a_pipe(tmp_path: Path) -> None:
    words = [word for word in SMALL_WORDS if word != "--quiet"]
    done = command("train", "cartpole", *words, "--out=run", cwd=tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "return(100)" in done.stdout


def test_the_picture() -> None:
    curve = display.Curve(40)
    curve.add(1.0)
    lines = display.picture(0.5, 61.0, 30.0, METRICS, curve)
    text = "\n".join(lines)
    assert "50.0%" in lines[0]
    assert lines[0].count("█") == lines[0].count("░") == 15
    for part in ("12.3 over", "1,234 steps/s", "308 updates/s", "40% full",
                 "gradient 65%  env 25%  act 10%", "nonfinite_skipped 2"):  # fmt: skip
        assert part in text
    assert "idle" not in text
    assert "restarts" not in text
    assert "starting" in display.picture(0.0, 0.0, None, {}, curve)[0]
    none = {**METRICS, "charts/return_mean_100": None, "memory_fill": None}
    text = "\n".join(display.picture(0.5, 61.0, 30.0, none, curve))
    assert "– over" in text
    assert "memory   –" in text


def test_a_line_for_every_role() -> None:
    split = {"actor": {"env": 0.7, "act": 0.3}, "learner": {"gradient": 1.0}}
    metrics = {**METRICS, "time_split": split}
    text = "\n".join(display.picture(0.5, 61.0, 30.0, metrics, display.Curve(4)))
    assert "actor: env 70%  act 30%\n" in text
    assert "learner: gradient 100%\n" in text


@pytest.mark.parametrize("values", [1, 7, 8, 9, 15, 16, 17, 1000])
def test_the_curve_stays_small_and_true(values: int) -> None:
    curve = display.Curve(8)
    for value in range(values):
        curve.add(float(value))
    drawn = str(curve)
    assert 1 <= len(drawn) <= 8
    assert list(drawn) == sorted(drawn)
    assert drawn[0] == "▁"
    if values > 1:
        assert drawn[-1] == "█"


def test_a_line_for_every_node_if_there_are_several() -> None:
    nodes = {"10.0.0.1": {"learner": 1, "shard": 2}, "10.0.0.2": {"actor": 8}}
    curve = display.Curve(10)
    lines = display.picture(0.5, 61.0, 30.0, {**METRICS, "nodes": nodes}, curve)
    shown = [line for line in lines if line.startswith("node")]
    assert shown == ["node     10.0.0.1: 1 learner, 2 shards", "node     10.0.0.2: 8 actors"]
    one = {"10.0.0.1": {"learner": 1}}
    lines = display.picture(0.5, 61.0, 30.0, {**METRICS, "nodes": one}, curve)
    assert not [line for line in lines if line.startswith("node")]
    many = {f"10.0.0.{number}": {"actor": 1} for number in range(9)}
    lines = display.picture(0.5, 61.0, 30.0, {**METRICS, "nodes": many}, curve)
    assert "         and 5 more nodes" in lines


def test_an_empty_and_a_level_curve() -> None:
    curve = display.Curve(8)
    assert str(curve) == ""
    curve.add(-3.0)
    curve.add(-3.0)
    assert str(curve) == "▁▁"


def test_a_resumed_run_is_judged_from_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = display.Clock()
    monkeypatch.setattr(clock, "passed_s", lambda: 10.0)
    assert clock.left_s(0.5) is None
    monkeypatch.setattr(clock, "passed_s", lambda: 20.0)
    assert clock.left_s(0.75) == pytest.approx(10.0)


def test_reports_carry_what_is_shown(tmp_path: Path) -> None:
    run = mh.Run("cartpole", out=tmp_path / "run", **SMALL)
    run.finish()
    report = run._reports.metrics()
    assert 0 < report["memory_fill"] <= 1
    assert sum(report["time_split"]["worker"].values()) == pytest.approx(1)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert not {"memory_fill", "time_split", "faults"} & set(row)
