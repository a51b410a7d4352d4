"""A run's folder: its files, their names, and the lock that keeps it to one run."""

from __future__ import annotations

import json
import os
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from manyhands.config import kept_code, plans, runfiles
from manyhands.runs import folder_lock, provenance
from manyhands.runs.checkpoint import write_json_atomically
from manyhands.runs.checkpoint_writing import os_errors_refused
from manyhands.runs.journal import Journal
from manyhands.types import BadRequest, Batch

CHECKPOINTS = "checkpoints"
EVENTS = "events.out.tfevents."
ATTEMPT = {"metrics.jsonl", "status.json", "summary.json", "snapshots", "best"}
STATUS_ROOM = 1024  # bytes by which status.json may grow on a full disk
BAD_BATCH = "nonfinite_batch.safetensors"


class RunDir:
    def __init__(self, path: Path) -> None:
        """`shown` is the path as the user gave it, for messages. All others are absolute."""
        self.shown, path = path, path.absolute()
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self.config = path / "config.json"
        self.faults = Journal(path, "faults.jsonl")
        self._hold: weakref.finalize[[int], RunDir] | None = None

    def __reduce__(self) -> tuple[type[RunDir], tuple[Path]]:
        """A worker gets the path. The lock stays in this process."""
        return RunDir, (self.path,)

    def claim(self) -> None:
        """Locks the folder. The kernel frees the lock when this process ends, however it ends."""
        try:
            descriptor = folder_lock.opened(self.path)
        except OSError as error:
            raise _unusable(self.shown, error) from error
        if not folder_lock.taken(descriptor):
            os.close(descriptor)
            raise BadRequest(
                f"{self.shown} is being written by another run",
                "choose another --out, or wait until that run has ended",
            )
        self._hold = weakref.finalize(self, folder_lock.release, descriptor)
        _held.add(self)
        self._check_writable()

    def _check_writable(self) -> None:
        """Tries a write now, not after an hour. Removes temporary files of a killed run."""
        try:
            with runfiles.opened(self.path) as folder:
                folder.remove_temporaries()
                with folder.trial():
                    pass
        except OSError as error:
            self.let_go()
            raise BadRequest(
                f"{self.shown} cannot be written to: {error.strerror}",
                "copy it to where you may write, or choose another --out",
            ) from error

    def let_go(self) -> None:
        self.faults.close()
        if self._hold is not None:
            self._hold()

    def let_the_parent_hold(self) -> None:
        """In a forked process: an open descriptor there would keep the lock alive."""
        detached = self._hold.detach() if self._hold is not None else None
        if detached is not None:
            os.close(detached[2][0])

    def write_start(self, plan: plans.Plan, command: str) -> plans.Plan:
        """Returns the plan, which now refers to the copies of the user's files in the folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.shown, error) from error
        self.claim()
        self._forget_an_attempt()
        plan = self.write_config(plan)
        with runfiles.opened(self.path) as folder:
            folder.write("command.txt", _line(command))
        write_json_atomically(self.path / "versions.json", provenance.versions())
        return plan

    def _forget_an_attempt(self) -> None:
        """Removes what a run left that stopped before its first checkpoint."""
        with runfiles.opened(self.path) as folder:
            left = [name for name in folder.names() if name in ATTEMPT or name.startswith(EVENTS)]
            for name in left:
                folder.remove(name)
        if left:
            self.add_fault("stopped before its first checkpoint", "began again")

    def add_command(self, command: str) -> None:
        """Adds a line to command.txt."""
        file = Journal(self.path, "command.txt")
        file.add(_line(command))
        file.close()

    def write_config(self, plan: plans.Plan) -> plans.Plan:
        plan = kept_code.as_recorded(plan)
        code = kept_code.keep(self.path, plan.as_layer(), plan.code)
        plan = replace(plan, code=tuple(code), home=str(self.path.resolve()))
        write_json_atomically(self.config, plans.to_json(plan))
        return plan

    def has_checkpoint(self) -> bool:
        """Whether there is a complete checkpoint, damaged or not."""
        with suppress(FileNotFoundError), runfiles.opened(self.path, CHECKPOINTS) as folder:
            return any(not name.startswith(".tmp-") for name in folder.names())
        return False

    def write_status(self, status: dict[str, Any]) -> None:
        """Replaces status.json. On a full disk it is overwritten in place, and the Failure raised.

        Spaces reserve the size that later states may need.
        """
        text = runfiles.json_text(status)
        with (
            os_errors_refused("could not write status.json", self.path),
            runfiles.opened(self.path) as folder,
        ):
            try:
                folder.write("status.json", text.ljust(len(text) + STATUS_ROOM))
            except OSError:
                with suppress(OSError):
                    folder.overwrite("status.json", text)
                raise

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json_atomically(self.path / "summary.json", summary)

    def add_fault(self, cause: str, action: str, **facts: Any) -> None:
        """Adds a line to faults.jsonl, or keeps it until the disk has space."""
        row = {"time": time.time(), "cause": cause, "action": action, **facts}
        self.faults.add(json.dumps(row).encode() + b"\n")
        self.faults.close()  # faults are rare

    def keep_bad_batch(self, batch: Batch) -> None:
        """Saves the first batch whose loss was not finite, for debugging.

        The learner's process calls it. With many learners only the first batch is saved.
        """
        from safetensors.torch import save

        names = ("observation", "action", "reward", "discount", "next_observation", "weight")
        content = save({name: getattr(batch, name).clone() for name in names})
        try:
            with runfiles.opened(self.path) as folder:
                _create(folder, BAD_BATCH, content)
        except FileExistsError:
            return
        except OSError as error:
            action = f"update skipped, batch not kept: {error.strerror or error}"
            self.add_fault("a loss was not finite", action)
        else:
            self.add_fault("a loss was not finite", "update skipped, batch kept")


_held: weakref.WeakSet[RunDir] = weakref.WeakSet()


def _forked() -> None:
    """A process that an environment forked may outlive the run and must not keep the lock."""
    for folder in list(_held):
        folder.let_the_parent_hold()


os.register_at_fork(after_in_child=_forked)


def _create(folder: runfiles.Directory, name: str, content: bytes) -> None:
    """Writes the whole file, or none."""
    file = folder.creating(name)
    try:
        with file:
            file.write(content)
    except OSError:
        folder.remove(name)
        raise


def new(out: Path | None, plan: plans.Plan) -> RunDir:
    """The folder of a new run. A folder that is not empty is refused."""
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
            "choose another --out, or continue it: --resume-if-exists, or manyhands resume",
        )
    try:
        runfiles.try_to_write(out)
    except OSError as error:
        what = f"{out} cannot be created: {error.strerror or error}"
        raise BadRequest(what, "choose another --out") from error
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
    try:
        with runfiles.opened(path) as folder:
            there = folder.look(run.config.name) is not None
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise BadRequest(what, "give a folder that `train` made") from error
    if not there:
        near = sorted(p.parent.name for p in path.parent.glob("*/config.json"))[-3:]
        hint = (
            f"runs there, among others: {', '.join(near)}"
            if near
            else "give a folder that `train` made"
        )
        raise BadRequest(f"{path} is not a run's folder: it has no config.json", hint)
    return run


def _line(command: str) -> bytes:
    return command.encode("utf-8", "backslashreplace").replace(b"\n", b" ") + b"\n"
