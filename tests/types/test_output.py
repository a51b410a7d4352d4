"""A run does not depend on its reader. A command that loses its output says so."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

import pytest

import manyhands as mh
from manyhands import cli
from manyhands.types.output import Outlet
from support.command_line import ALONE, SMALL, SMALL_SECTIONS, call

LOUD = [*SMALL_SECTIONS, "--steps=300", "--evaluation.period-steps=200", "--evaluation.episodes=2"]


def left_by_its_reader() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering=1)


MADE: dict[str, Callable[[], TextIO]] = {
    "left by its reader": left_by_its_reader,
    "full": lambda: os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", buffering=1),
    "closed": lambda: os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"),
    "ASCII alone": lambda: io.TextIOWrapper(io.BytesIO(), encoding="ascii"),
}


@contextmanager
def output(kind: str) -> Iterator[TextIO]:
    """Within it standard output is of that kind. No fixture: pytest's own capture is set again
    between one and its test.
    """
    with suppress(OSError), closing(MADE[kind]()) as stream:
        if kind == "closed":
            stream.close()
        with redirect_stdout(stream):
            yield stream


UNWRITABLE = pytest.mark.parametrize("kind", MADE)


@UNWRITABLE
def test_training_continues_whatever_reads_its_output(kind: str, tmp_path: Path) -> None:
    with output(kind) as stream, redirect_stderr(stream):
        code = call("train", "cartpole", *LOUD, "--out", tmp_path / "run")
    assert code == 0
    assert '"finished"' in (tmp_path / "run" / "status.json").read_text()


@UNWRITABLE
def test_from_python_too(kind: str, tmp_path: Path) -> None:
    evaluation = {"period_steps": 200, "episodes": 2}
    options = SMALL | {"quiet": False, "evaluation": evaluation}
    with output(kind):
        run = mh.train("cartpole", out=tmp_path, **options)
    assert run.summary["agent_steps"] == 300


def test_training_with_no_standard_output_at_all(tmp_path: Path) -> None:
    """Its number must not go to the run's files, nor the interpreter's last words to anybody."""
    words = " ".join(["train", "cartpole", *LOUD, f"--out={tmp_path / 'run'}"])
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m manyhands {words} <&- >&-'],
        stderr=subprocess.PIPE, text=True, env=ALONE, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0]
    assert first.startswith('{"agent_steps"')


@pytest.mark.parametrize("words", ["list", "train cartpole --print-config", "--help"])
def test_a_reader_that_has_seen_enough(words: str) -> None:
    program = f'"{sys.executable}" -m manyhands {words}; echo $? >&2'
    done = subprocess.run(
        ["sh", "-c", f"({program}) | head -1"],
        capture_output=True, text=True, env=ALONE | {"PYTHONUNBUFFERED": "1"}, check=False,
    )  # fmt: skip
    assert (done.stderr, len(done.stdout.splitlines())) == ("0\n", 1)


def test_words_that_were_asked_for_and_lost_are_a_failure() -> None:
    told = io.StringIO()
    with output("full"), redirect_stderr(told):
        code = cli.main(["list"])
    assert code == 1
    assert "No space left on device" in told.getvalue()


def test_what_it_cannot_spell_is_replaced() -> None:
    kept = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(kept, encoding="ascii"))
    print("1.0 ± 2.0", file=outlet, flush=True)
    assert kept.getvalue() == b"1.0 ? 2.0\n"
    assert not outlet.can_show("█")
