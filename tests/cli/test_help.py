"""What --help says, and which word is offered for one that is not known."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import manyhands as mh
from manyhands import cli
from manyhands.cli import help_text
from manyhands.config import presets, registry, sections
from support.command_line import SMALL, SMALL_SECTIONS, call

Capture = pytest.CaptureFixture[str]
ENTRIES = [cli._entry(name) for name in cli.COMMANDS]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("width", [50, 80, 120])
def test_help_fits_the_terminal_and_loses_nothing(entry: help_text.Entry, width: int) -> None:
    wrapped, whole = help_text.of(entry, [], width), help_text.of(entry, [], 0)
    long = [line for line in wrapped.splitlines()[3:] if len(line) > width]
    assert not [line for line in long if len(line.split()) > 1]
    assert wrapped.split() == whole.split()


@pytest.mark.parametrize("words", [[], ["train"], ["compare"]])
def test_help_in_a_pipe_fits_80_columns_or_as_asked(
    words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, width in (("", 80), ("60", 60), ("1000", 1000)):
        monkeypatch.setenv("COLUMNS", asked)
        assert call(*words, "--help") == 0
        lines = capsys.readouterr().out.splitlines()
        assert not [line for line in lines if len(line) > width and len(line.split()) > 1]
        assert max(map(len, lines)) > min(width, 130) / 2


def test_every_option_has_its_default(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for entry in ENTRIES:
        lines = help_text.of(entry, [], 0).splitlines()
        options = [line for line in lines if line.startswith("  --")]
        assert len(options) >= len(fields(entry.flags))
        assert all(line.endswith("]") for line in options)
    assert call("train", "cartpole", "--help") == 0
    shown = capsys.readouterr().out
    assert "[200000]" in next(line for line in shown.splitlines() if "--steps " in line)


def test_help_names_every_recipe_and_strategy() -> None:
    shown = help_text.of(cli._entry("train"), [], 0)
    for name in (*presets.names("recipes"), *registry.names("strategies")):
        assert name in shown


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["train", "cartpole", "--json"], "known: "), (["train", "cartpole", "--stesp"], "--steps"),
     (["evaluate", "run", "--jsno"], "--json"), (["evaluate", "run", "--out"], "known: "),
     (["train", "cartpole", "--recipe", "dnq"], "did you mean dqn?")],
)  # fmt: skip
def test_only_what_is_near_is_offered(words: list[str], hint: str, capsys: Capture) -> None:
    assert call(*words) == 2
    told = capsys.readouterr().err
    assert hint in told
    assert ("did you mean" in told) == (hint != "known: ")


@pytest.mark.parametrize(("recipe", "there"), [("dqn", True), ("paac", False)])
def test_epsilon_is_shown_where_there_is_one(
    recipe: str, there: bool, tmp_path: Path, capsys: Capture
) -> None:
    small = ["--steps=40", "--threads=1", "--envs-per-worker=2", "--memory.capacity=1000"]
    assert call("train", "cartpole", "--recipe", recipe, *small, "--out", tmp_path / "run") == 0
    assert ("  epsilon " in capsys.readouterr().out) == there
    assert ("charts/epsilon" in (tmp_path / "run" / "metrics.jsonl").read_text()) == there


def test_that_it_was_not_solved_is_said_where_it_was_wanted(
    tmp_path: Path, capsys: Capture
) -> None:
    words = [*SMALL_SECTIONS, "--steps=200", "--out", tmp_path / "run"]
    assert call("train", "cartpole", "--until-solved", *words) == 0
    assert "not solved: the mean of 100 episodes has not reached 475" in (capsys.readouterr().out)
    mh.train("cartpole", out=tmp_path / "other", **SMALL | {"quiet": False})
    assert "not solved" not in capsys.readouterr().out


def test_help_shows_every_field(capsys: Capture) -> None:
    assert call("train", "--recipe", "dqn", "--help") == 0
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "--" in line}
    own = {f"--{field.name}" for field in fields(cli.TrainFlags)}
    known = sections.types_of("dqn", "serial").items()
    own |= {f"--{name}.{field.name}" for name, kind in known for field in fields(kind)}
    assert {flag.replace("_", "-") for flag in own} <= shown


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["help"], *([name, "--help"] for name in cli.COMMANDS), ["plot", "-h"]],
)
def test_help_of_the_others(words: list[str], capsys: Capture) -> None:
    assert call(*words) == 0
    assert "manyhands" in capsys.readouterr().out


def test_help_lists_every_command(capsys: Capture) -> None:
    assert call("--help") == 0
    shown = capsys.readouterr().out
    commands: tuple[str, ...] = ("train", "resume", "evaluate", "record", "watch", "plot")
    commands += ("compare", "plan", "doctor", "list")
    assert tuple(cli.COMMANDS) == commands
    assert all(f"  manyhands {name} " in shown for name in commands)
