"""Writes checkpoint folders, so that a kill at any moment leaves a good one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyhands.config import runfiles
from manyhands.config.runfiles import JSON_LIMIT, Directory
from manyhands.runs.checkpoint_files import (
    ASIDE_NAME,
    FORMAT,
    MANIFEST,
    REPLAY,
    STATE,
    STEP_NAME,
    TREE,
    WEIGHTS,
    Named,
    aside_name,
    encode,
    file_bytes,
)
from manyhands.types import Array, Failure, State
from manyhands.types.sizes import human

KEPT = 2  # checkpoints: if the newest is damaged, the one before it is used


@contextmanager
def os_errors_refused(what: str, folder: Path) -> Iterator[None]:
    """Turns an OSError into a Failure with a remedy."""
    try:
        yield
    except OSError as error:
        space = f"Free some space on the disk of {folder} and see that it can be written to"
        remedy = f"{runfiles.remedy(error, space)}."
        if isinstance(error, runfiles.Refused):
            remedy = f"See what {error.filename} is in {folder}, and remove it."
        why = runfiles.reason(error)
        raise Failure(f"{what}: {why}", f"{remedy} Earlier checkpoints are untouched.") from error


def split_files(
    weights: Named, state: State, replay: State | None
) -> tuple[dict[str, Named], bytes]:
    """The named arrays of each file, and the JSON."""
    kept: dict[str, Array] = {}
    replayed: dict[str, Array] = {}
    tree = {"state": encode(state, (), kept), "replay": encode(replay, (), replayed)}
    text = json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > JSON_LIMIT:
        raise ValueError(f"{human(len(text))} of JSON is too much state: use arrays")
    files: dict[str, Named] = {WEIGHTS: weights, STATE: kept}
    return (files if replay is None else {**files, REPLAY: replayed}), text


def put_folder(
    there: Directory,
    final: str,
    temporary: str,
    step: int,
    files: Mapping[str, Named],
    tree: bytes,
) -> None:
    """Writes the folder under its temporary name, then renames it."""
    try:
        there.make_folder(temporary)
        with there.folder(temporary) as folder:
            entries = {name: _write(folder, name, file_bytes(files[name])) for name in files}
            entries[TREE] = _write(folder, TREE, [tree])
            manifest = {"format": FORMAT, "step": step, "files": entries}
            _write(folder, MANIFEST, [json.dumps(manifest, indent=1).encode()])
            folder.to_disk()
        if there.look(final) is not None:
            there.rename(final, aside_name(final))
        there.rename(temporary, final)
        there.to_disk()
        there.remove(aside_name(final))
    except BaseException:
        there.remove(temporary)
        raise


def _write(folder: Directory, name: str, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Writes a file and flushes it to disk; returns its entry in the manifest.

    A second thread hashes each piece while it is written. At most two pieces are in memory.
    """
    digest, size = hashlib.sha256(), 0
    with folder.creating(name) as file, ThreadPoolExecutor(1) as hashing:
        last: Future[None] | None = None
        for piece in pieces:
            if last is not None:
                last.result()
            last = hashing.submit(digest.update, piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest(), "optional": name == REPLAY}


def settle_aside(there: Directory, final: str) -> None:
    """Repairs what a kill left between the two renames, or before the old folder was removed."""
    if there.look(final) is not None:
        there.remove(aside_name(final))
    elif there.look(aside_name(final)) is not None:
        there.rename(aside_name(final), final)


def clean_up_after_kills(there: Directory) -> None:
    for name in there.names():
        if name.startswith(".tmp-"):
            there.remove(name)
        elif aside := ASIDE_NAME.fullmatch(name):
            settle_aside(there, aside[1])


def prune(there: Directory, newest_step: int) -> None:
    # Later steps than the one just written belong to damaged checkpoints that the resumed run
    # refused. If they counted, good checkpoints would be removed instead of them. A folder that
    # cannot be removed now (NFS keeps open files) is tried again at the next save.
    steps = sorted(int(name) for name in there.names() if STEP_NAME.fullmatch(name))
    kept = [step for step in steps if step <= newest_step][-KEPT:]
    for step in steps:
        if step not in kept:
            there.remove(str(step))
        elif step != newest_step and there.has_folder(str(step)):
            with there.folder(str(step)) as older:
                older.remove(REPLAY)
