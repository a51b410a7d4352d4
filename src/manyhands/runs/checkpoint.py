"""Saves and loads checkpoints: folders that are either complete or absent.

    weights.safetensors   named arrays; the same weights are the same bytes
    state.safetensors     the arrays of the state; each name is its path
    state.json            the rest of state and replay, with placeholders for their arrays
    replay.safetensors    the arrays of the replay; only the newest checkpoint has it
    manifest.json         written last: format, step, and the size and SHA-256 of each file

A folder is written under a hidden name, flushed to disk and renamed. If it replaces another, the
old one is first renamed to ``.<name>-old``, and the loader looks there too. So a process may be
killed at any moment, and the loader still finds a good checkpoint. A checkpoint that fails its
checks is reported in one sentence, and the loader tries the next older one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from manyhands.config import runfiles
from manyhands.config.runfiles import Directory
from manyhands.runs.checkpoint_files import ASIDE_NAME, REPLAY, STEP_NAME, Named, aside_name
from manyhands.runs.checkpoint_reading import Loaded as Loaded
from manyhands.runs.checkpoint_reading import first_good
from manyhands.runs.checkpoint_writing import (
    clean_up_after_kills,
    os_errors_refused,
    prune,
    put_folder,
    settle_aside,
    split_files,
)
from manyhands.types import BadRequest, State
from manyhands.types.sizes import human

SNAPSHOTS, BEST = "snapshots", "best"
SAMPLE_BYTES = 8 << 20

# --- Saving -------------------------------------------------------------------------------------


def save(
    folder: Path, step: int, *, weights: Named, state: State, replay: State | None = None
) -> Path:
    """Writes ``folder/<step>``; keeps the checkpoint before it, but not that one's replay."""
    files, tree = split_files(weights, state, replay)
    with (
        os_errors_refused(f"could not write checkpoint {step}", folder),
        runfiles.opened(folder.parent, folder.name, make=True) as there,
    ):
        clean_up_after_kills(there)
        put_folder(there, str(step), f".tmp-{step}-{os.getpid()}", step, files, tree)
        prune(there, step)
    return folder / str(step)


def save_best(run: Path, step: int, *, weights: Named, state: State) -> Path:
    """Writes ``run/best`` and replaces the old one."""
    return _save_alone(run, (), BEST, step, weights=weights, state=state)


def save_snapshot(run: Path, step: int, *, weights: Named, state: State) -> Path:
    """Writes ``run/snapshots/<step>`` and keeps the others."""
    return _save_alone(run, (SNAPSHOTS,), str(step), step, weights=weights, state=state)


def _save_alone(
    run: Path, below: tuple[str, ...], final: str, step: int, *, weights: Named, state: State
) -> Path:
    files, tree = split_files(weights, state, None)
    path = run.joinpath(*below, final)
    with (
        os_errors_refused(f"could not write {path}, of step {step}", path.parent),
        runfiles.opened(run, *below, make=True) as there,
    ):
        temporary = f".{final}-tmp"
        there.remove(temporary)
        settle_aside(there, final)
        put_folder(there, final, temporary, step, files, tree)
    return path


def check_disk(folder: Path, needed: int) -> None:
    """Refuses if the disk of ``folder`` has less than ``needed`` bytes free.

    The folder need not exist yet.
    """
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        sizes = f"{human(needed)} needed, {human(free)} free"
        raise BadRequest(
            f"not enough disk space for checkpoints in {folder}: {sizes}",
            "Free some space, choose another --out, or lower --memory.capacity.",
        )


def seconds_to_write(folder: Path, size: int) -> float:
    """An estimate: how long the disk of ``folder`` takes for so many bytes, by a small sample."""
    with tempfile.TemporaryFile(dir=folder) as file:
        sample, began_s = os.urandom(SAMPLE_BYTES), perf_counter()
        file.write(sample)
        file.flush()
        os.fsync(file.fileno())
        return size / SAMPLE_BYTES * (perf_counter() - began_s)


def seconds_to_read(folder: Path) -> tuple[int, float]:
    """The size of the newest replay in bytes, and an estimate of how long it takes to read."""
    with runfiles.opened(folder.parent, folder.name) as there:
        steps = [int(name) for name in there.names() if STEP_NAME.fullmatch(name)]
        with there.folder(str(max(steps, default=0))) as newest, newest.reading(REPLAY) as file:
            size, began_s = os.fstat(file.fileno()).st_size, perf_counter()
            sample = file.read(SAMPLE_BYTES)
            hashlib.sha256(sample)
            return size, size / max(1, len(sample)) * (perf_counter() - began_s)


def write_json_atomically(path: Path, content: Any) -> None:
    """Readers see the old file or the new one. It is strict JSON: NaN and infinities are null."""
    with (
        os_errors_refused(f"could not write {path.name}", path.parent),
        runfiles.opened(path.parent) as folder,
    ):
        runfiles.write_json(folder, path.name, content)


# --- Loading ------------------------------------------------------------------------------------


def newest(folder: Path, *, replay: bool = True) -> Loaded:
    """The newest good checkpoint. Without ``replay`` that file is neither verified nor loaded."""

    def candidates(there: Directory) -> Iterator[str]:
        names = there.names()
        names = [aside[1] if (aside := ASIDE_NAME.fullmatch(name)) else name for name in names]
        steps = {int(name) for name in names if STEP_NAME.fullmatch(name)}
        for step in sorted(steps, reverse=True):
            yield from (str(step), aside_name(str(step)))

    return first_good(folder, (folder.parent, folder.name), candidates, replay=replay)


def load(path: Path, *, replay: bool = True) -> Loaded:
    """The checkpoint in the folder ``path``."""
    final = path.absolute()
    return first_good(path, (final.parent,), _one(final.name), replay=replay)


def load_best(run: Path) -> Loaded:
    if not has_best(run):
        raise BadRequest(
            f"{run} has no best checkpoint: it was never evaluated",
            "leave out --best, or train with --evaluation.period-steps N, which keeps the best",
        )
    return load(run / BEST)


def has_best(run: Path) -> bool:
    return any(os.path.lexists(run / name) for name in (BEST, aside_name(BEST)))


def load_snapshot(run: Path, step: int) -> Loaded:
    path = run / SNAPSHOTS / str(step)
    return first_good(path, (run, SNAPSHOTS), _one(str(step)), replay=False)


def _one(final: str) -> Callable[[Directory], Iterable[str]]:
    return lambda _: (final, aside_name(final))
