"""A run's folder: the files in it, their names, and who may make one."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from manyhands import config
from manyhands.checkpoint import write_json_atomically
from manyhands.types import BadRequest, Batch

BAD_BATCH = "nonfinite_batch.safetensors"
LIBRARIES = ("manyhands", "torch", "numpy", "gymnasium", "ale-py", "box2d", "safetensors", "ray")


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.config = path / "config.json"
        self._hold: weakref.finalize[[int], RunDir] | None = None

    def __reduce__(self) -> tuple[type[RunDir], tuple[Path]]:
        """To a worker goes where it is; the hold on it stays here."""
        return RunDir, (self.path,)

    def claim(self) -> None:
        """Ours alone, until we let go of it or die in whatever way: the kernel's lock on it."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise BadRequest(
                f"{self.path} is being written by another run",
                "choose another --out, or wait until that run has ended",
            ) from error
        self._hold = weakref.finalize(self, os.close, descriptor)

    def let_go(self) -> None:
        if self._hold is not None:
            self._hold()

    def write_start(self, plan: config.Plan, command: str) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        self.claim()
        write_json_atomically(self.config, config.to_json(plan))
        (self.path / "command.txt").write_text(command + "\n", encoding="utf-8")
        write_json_atomically(self.path / "versions.json", versions())

    def has_checkpoint(self) -> bool:
        """Good or not; one that was still being written when the run was killed is none."""
        found = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return any(not path.name.startswith(".tmp-") for path in found)

    def write_status(self, status: dict[str, Any]) -> None:
        write_json_atomically(self.path / "status.json", status)

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json_atomically(self.path / "summary.json", summary)

    def add_fault(self, cause: str, action: str, **facts: Any) -> None:
        """Kept where the disk has room for it; a fault that cannot be written makes no second."""
        row = {"time": time.time(), "cause": cause, "action": action, **facts}
        with (
            suppress(OSError),
            (self.path / "faults.jsonl").open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(row) + "\n")

    def keep_bad_batch(self, batch: Batch) -> None:
        """The first batch whose loss was not finite, for whoever wants to know why.

        Called where the learner is; of many learners the first keeps its batch.
        """
        from safetensors.torch import save

        names = ("observation", "action", "reward", "discount", "next_observation", "weight")
        content = save({name: getattr(batch, name).clone() for name in names})
        with suppress(FileExistsError), (self.path / BAD_BATCH).open("xb") as file:
            file.write(content)
            self.add_fault("a loss was not finite", "update skipped, batch kept")


def new(out: Path | None, plan: config.Plan) -> RunDir:
    """A folder for a new run; one that holds something already is refused."""
    if out is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = f"{plan.task}-{plan.top.recipe}-seed{plan.top.seed}-{stamp}"
        out = free_name(Path("runs") / name.replace("/", "-").replace(":", "-"))
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise _unusable(out, error) from error
    if taken:
        raise BadRequest(
            f"{out} exists already and is not empty",
            "choose another --out, or go on with it: --resume-if-exists, or manyhands resume",
        )
    return RunDir(out)


def _unusable(out: Path, error: OSError) -> BadRequest:
    what = f"{out} cannot be the run's folder: {error.strerror or error}"
    return BadRequest(what, "choose another --out")


def free_name(path: Path) -> Path:
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def existing(path: Path) -> RunDir:
    run = RunDir(path)
    if not run.config.is_file():
        near = sorted(p.parent.name for p in path.parent.glob("*/config.json"))[-3:]
        hint = (
            f"runs there, among others: {', '.join(near)}"
            if near
            else "give a folder that `train` made"
        )
        raise BadRequest(f"{path} is not a run's folder: it has no config.json", hint)
    return run


def command_line() -> str:
    """What was typed, or the script that called us."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    name = "manyhands" if name in ("manyhands", "__main__.py") else name
    return shlex.join([name, *sys.argv[1:]])


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found | {"commit": commit()}


def commit() -> str:
    """The commit of the checkout this package runs from; empty when it is installed."""
    here = Path(__file__).resolve().parent
    try:
        top = subprocess.run(
            ["git", "rev-parse", "--show-toplevel", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    is_ours = len(top) == 2 and here == Path(top[0]).resolve() / "src" / "manyhands"
    return top[1] if is_ours else ""
