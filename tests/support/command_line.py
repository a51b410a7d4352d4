"""How tests call the command: in this process, or as a user does, in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from manyhands import cli

SECTIONS: dict[str, dict[str, Any]] = {
    "dqn": {"warmup_steps": 50, "batch_size": 16, "steps_per_update": 1},
    "memory": {"capacity": 500},
    "network": {"hidden": (16, 16)},
}
SMALL: dict[str, Any] = {
    "steps": 300,
    "envs_per_worker": 1,
    "threads": 1,
    "quiet": True,
    **SECTIONS,
}
"""Options of `mh.train` for a run of a moment."""

SMALL_SECTIONS = [
    "--dqn.warmup-steps=50", "--dqn.batch-size=16", "--dqn.steps-per-update=1",
    "--memory.capacity=500", "--network.hidden=16,16", "--threads=1", "--envs-per-worker=1",
]  # fmt: skip
SMALL_WORDS = [*SMALL_SECTIONS, "--quiet", "--steps=300"]
"""The same on the command line."""

ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

BLOCK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
"""Code after which a module cannot be imported."""


def call(*words: Any) -> int:
    return cli.main([str(word) for word in words])


def start(*words: Any, code: str = "", **options: Any) -> subprocess.Popen[str]:
    """The command as a process, in a session of its own; ``code`` is run before it."""
    if code:
        code += "\nimport sys; from manyhands.cli import main; sys.exit(main(sys.argv[1:]))"
    program = ["-c", code] if code else ["-m", "manyhands"]
    return subprocess.Popen(
        [sys.executable, *program, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **{"env": ALONE, **options},
    )


def command(*words: Any, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    process = start(*words, code=code, **options)
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def assert_told(err: str, *mentions: str) -> None:
    """One sentence that says what, one that says what to do, and no traceback."""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("manyhands: ")
    assert len(lines[0]) > 20
    assert lines[1].startswith("  ")
    assert lines[1].strip()
    for mention in mentions:
        assert mention in err, f"{mention!r} is not in:\n{err}"
