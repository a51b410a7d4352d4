"""What a person sees: in a terminal, as curves, and of the machine."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

import manyhands as mh
from command_line import ALONE, BLOCK, SMALL, SMALL_WORDS, call, command
from manyhands.cli import doctor
from manyhands.viewing import display, plot

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


# --- Plots --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plot") / "one"
    options = {**SMALL, "evaluation": {"period_steps": 100, "episodes": 1}}
    return mh.train("cartpole", out=path, **options).path


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained, tmp_path / "one")


def inked(path: Path) -> int:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return len(set(picture.convert("RGB").get_flattened_data()))


def test_curves_of_one_and_of_several(run: Path, capsys: Capture) -> None:
    shutil.copytree(run, "two")
    assert call("plot", run) == 0
    assert call("plot", run, "two") == 0
    assert call("plot", run, "two", "--out=deep/in/both.png") == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [str(run / "curves.png"), "curves.png", "deep/in/both.png"]
    assert all(inked(Path(path)) > 20 for path in told)


def test_what_is_plotted_is_what_was_measured(run: Path) -> None:
    curves = plot.read(run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [r[plot.EPISODE] for r in rows if plot.EPISODE in r]
    assert sorted(curves.series[plot.EPISODE].values) == sorted(returns)
    assert curves.series[plot.EVALUATION].steps == [100, 200, 300]
    assert curves.series[plot.AVERAGE].minutes[-1] == pytest.approx(rows[-1]["wall_s"] / 60)
    assert curves.name == "one"


@pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n[1]\n", '{"agent_steps": 1}\n'])
def test_metrics_that_are_none(text: str, run: Path, capsys: Capture) -> None:
    (run / "metrics.jsonl").write_text(text)
    assert call("plot", run) == 2
    assert "no metrics" in capsys.readouterr().err
    (run / "metrics.jsonl").unlink()
    assert call("plot", run) == 2


def test_a_line_cut_short_is_left_out(run: Path) -> None:
    whole = plot.read(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"agent_steps": 310, "wall')
    assert plot.read(run) == whole


def test_a_picture_it_cannot_write(run: Path, capsys: Capture) -> None:
    assert call("plot", run, "--out=x.nonsense") == 1
    assert "--out" in capsys.readouterr().err


# --- The doctor ---------------------------------------------------------------------------------


def test_the_doctor(capsys: Capture) -> None:
    assert call("doctor") == 0
    told = capsys.readouterr().out
    for word in (
        "python",
        "cores",
        "memory free",
        "disk free",
        "/dev/shm",
        "torch",
        *doctor.EXTRAS,
    ):
        assert f"\n{word} " in f"\n{told}"
    assert call("doctor", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores"] >= 1
    assert facts["torch"]["device"] in ("cpu", "cuda", "mps")
    assert facts["memory_free_bytes"] > 0 < facts["disk_free_bytes"]
    assert set(facts["extras"]) == set(doctor.EXTRAS)


def test_the_doctor_names_what_is_missing(tmp_path: Path) -> None:
    code = "".join(BLOCK.format(name=name) for name in ("ale_py", "matplotlib"))
    done = command("doctor", code=code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'atari        missing: pip install "manyhands[atari]"' in done.stdout
    assert 'plots        missing: pip install "manyhands[plots]"' in done.stdout
    assert "video        ready" in done.stdout


def test_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_torch", lambda: None)
    monkeypatch.setattr(doctor, "_shared_memory", lambda: 64_000_000)
    facts = doctor.examine()
    assert any("pip install torch" in sentence for sentence in facts["advice"])
    assert any("--shm-size" in sentence for sentence in facts["advice"])
    assert "missing" in doctor.as_text(facts)
