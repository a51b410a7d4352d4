"""Every snippet of docs/howto/own-*.md, run as it stands: files written, commands given."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import ALONE

HOW_TO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = [HOW_TO / f"own-{what}.md" for what in ("environment", "network", "algorithm")]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.M | re.S)
FILES = {code.split("\n")[0].removeprefix("# "): code for kind, code in BLOCKS if kind == "python"}
COMMANDS = [line for kind, code in BLOCKS if kind == "sh" for line in code.splitlines()]
FEWER = {"20_000": "3_000", "25_000": "3_500"}  # the corridor is learned by then


def shortened(text: str) -> str:
    for many, few in FEWER.items():
        text = text.replace(many, few)
    return text


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name, code in FILES.items():
        (tmp_path / name).write_text(shortened(code), encoding="utf-8")
    return tmp_path


def run(words: list[str], here: Path) -> str:
    environment = {**ALONE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *words[1:]]
    done = subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_has_what_it_promises() -> None:
    assert list(FILES) == ["corridor.py", "train_corridor.py", "wave.py", "expected_sarsa.py"]
    assert len(COMMANDS) == 5
    assert all(command.startswith("python -m manyhands ") for command in COMMANDS)
    assert {kind for kind, _ in BLOCKS} == {"python", "sh"}


def test_the_commands(here: Path) -> None:
    said = [run(shlex.split(shortened(command)), here) for command in COMMANDS]
    assert "how often the evaluated policy moves at random" in " ".join(said[-1].split())
    found = {name: summary(here / "runs" / name) for name in ("corridor", "wave", "sarsa")}
    assert found["sarsa"]["algorithm"] == str(here / "expected_sarsa.py")
    config = json.loads((here / "runs" / "sarsa" / "config.json").read_text())["config"]
    assert config["expected_sarsa"]["slips"] == 0.2
    for name in found:
        words = ["evaluate", f"runs/{name}", "--allow-code", "--episodes", "20", "--json"]
        score = json.loads(run(["python", "-m", "manyhands", *words], here).splitlines()[-1])
        assert score["mean"] == 1.0, f"{name} did not learn the corridor"


def test_the_script(here: Path) -> None:
    said = run(["python", "train_corridor.py"], here)
    assert "1.0" in said.splitlines()
    assert summary(here / "runs" / "from-python")["agent_steps"] == 3_500


def summary(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((path / "summary.json").read_text())
    return found
