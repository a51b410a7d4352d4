"""Checkpoints: folders that are either whole or not there.

    weights.safetensors   named arrays; the same weights are the same bytes
    state.safetensors     the arrays of the state, under their paths
    state.json            the rest of state and replay, with placeholders for their arrays
    replay.safetensors    the arrays of the replay; only the newest checkpoint has it
    manifest.json         written last: format, step, and of each file its size and SHA-256

A folder is written under a hidden name, forced to disk and renamed. Where it takes the place of
another, that one is first moved aside (``.<name>-old``), where the loader looks too: a process
may be killed at any moment and a good checkpoint is found. Reading runs no code and trusts no
name, size or offset; whatever is wrong becomes one sentence and the next older one is tried.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.treefile import (
    JSON_LIMIT,
    TREE,
    Named,
    decode,
    encode,
    file_arrays,
    file_bytes,
    human,
    read_json,
)
from manyhands.types import Array, BadRequest, Failure, State

FORMAT = 1
KEPT = 2  # checkpoints: should the newest be damaged, there is one before it
WEIGHTS, STATE, REPLAY = "weights.safetensors", "state.safetensors", "replay.safetensors"
MANIFEST = "manifest.json"
REQUIRED = {WEIGHTS, STATE, TREE}
STEP_NAME = re.compile(r"0|[1-9][0-9]{0,17}")
ASIDE_NAME = re.compile(rf"\.({STEP_NAME.pattern})-old")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint whose every byte was verified."""

    path: Path
    step: int
    weights: dict[str, Array]
    state: State
    replay: State | None  # None: pruned, absent or not asked for. Arrays are read-only file maps
    problems: list[str]  # a sentence for each newer checkpoint that was refused


# --- Saving -------------------------------------------------------------------------------------


def save(
    folder: Path, step: int, *, weights: Named, state: State, replay: State | None = None
) -> Path:
    """Writes ``folder/<step>``, then removes all but it and the one before, and older replays."""
    files, tree = _split(weights, state, replay)
    with _os_errors_refused(f"could not write checkpoint {step}", folder):
        folder.mkdir(parents=True, exist_ok=True)
        _clean_up_after_kills(folder)
        _put(folder / str(step), folder / f".tmp-{step}-{os.getpid()}", step, files, tree)
        _prune(folder, step)
    return folder / str(step)


def save_best(run: Path, step: int, *, weights: Named, state: State) -> Path:
    """Writes ``run/best`` in place of the one there."""
    return _save_alone(run / "best", step, weights=weights, state=state)


def save_snapshot(run: Path, step: int, *, weights: Named, state: State) -> Path:
    """Writes ``run/snapshots/<step>`` beside the ones there."""
    return _save_alone(run / "snapshots" / str(step), step, weights=weights, state=state)


def _save_alone(final: Path, step: int, *, weights: Named, state: State) -> Path:
    files, tree = _split(weights, state, None)
    with _os_errors_refused(f"could not write {final}, of step {step}", final.parent):
        temporary = final.with_name(f".{final.name}-tmp")
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        _settle_aside(final)
        _put(final, temporary, step, files, tree)
    return final


def check_disk(folder: Path, needed: int) -> None:
    """Refuses if the disk of ``folder``, which need not exist yet, has not ``needed`` bytes."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        sizes = f"{human(needed)} needed, {human(free)} free"
        raise BadRequest(
            f"not enough disk space for checkpoints in {folder}: {sizes}",
            "Free some space, choose another --out, or lower --memory.capacity.",
        )


def write_json_atomically(path: Path, content: Any) -> None:
    """Readers see the old file or the new one, and strict JSON: NaN and infinities become null."""
    temporary = path.with_name(f".{path.name}.tmp")
    text = json.dumps(_strict(content), indent=1, allow_nan=False) + "\n"
    with _os_errors_refused(f"could not write {path.name}", path.parent):
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _os_errors_refused(what: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = f"Free some space on the disk of {folder} and see that it can be written to."
        why = error.strerror or error
        raise Failure(f"{what}: {why}", f"{remedy} Earlier checkpoints are untouched.") from error


# --- From one folder to the next ----------------------------------------------------------------


def _put(final: Path, temporary: Path, step: int, files: Mapping[str, Named], tree: bytes) -> None:
    try:
        temporary.mkdir()
        entries = {name: _write(temporary / name, file_bytes(files[name])) for name in files}
        entries[TREE] = _write(temporary / TREE, [tree])
        manifest = {"format": FORMAT, "step": step, "files": entries}
        _write(temporary / MANIFEST, [json.dumps(manifest, indent=1).encode()])
        _sync(temporary)
        if os.path.lexists(final):
            os.rename(final, _aside(final))
        os.rename(temporary, final)
        _sync(final.parent)
        _remove(_aside(final))
    except BaseException:
        _remove(temporary)
        raise


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}-old")


def _settle_aside(final: Path) -> None:
    """After a kill between the two renames, or before the old one was removed."""
    if os.path.lexists(final):
        _remove(_aside(final))
    elif os.path.lexists(_aside(final)):
        os.rename(_aside(final), final)


def _clean_up_after_kills(folder: Path) -> None:
    for path in list(folder.iterdir()):
        if path.name.startswith(".tmp-"):
            _remove(path)
        elif aside := ASIDE_NAME.fullmatch(path.name):
            _settle_aside(folder / aside[1])


def _prune(folder: Path, newest_step: int) -> None:
    # Steps beyond the one just written are of a history the run has left: they were refused when
    # it was resumed. Counting them would remove good checkpoints in their favour.
    steps = sorted(int(path.name) for path in folder.iterdir() if STEP_NAME.fullmatch(path.name))
    kept = [step for step in steps if step <= newest_step][-KEPT:]
    for step in steps:
        if step not in kept:
            _remove(folder / str(step))
        elif step != newest_step:
            _remove(folder / str(step) / REPLAY)


def _remove(path: Path) -> None:
    # What cannot be removed now (NFS keeps files that are open somewhere) is tried again at the
    # next save; it is no reason to stop a run.
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Writing files ------------------------------------------------------------------------------


def _write(path: Path, pieces: Iterable[bytes]) -> dict[str, Any]:
    """Writes and forces to disk; returns the entry in the manifest."""
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest(), "optional": path.name == REPLAY}


def _split(weights: Named, state: State, replay: State | None) -> tuple[dict[str, Named], bytes]:
    """The named arrays of each file, and the JSON."""
    kept: dict[str, Array] = {}
    replayed: dict[str, Array] = {}
    tree = {"state": encode(state, (), kept), "replay": encode(replay, (), replayed)}
    text = json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > JSON_LIMIT:
        raise ValueError(f"{human(len(text))} of JSON is too much state: use arrays")
    files: dict[str, Named] = {WEIGHTS: weights, STATE: kept}
    return (files if replay is None else {**files, REPLAY: replayed}), text


# --- Loading ------------------------------------------------------------------------------------


def newest(folder: Path, *, replay: bool = True) -> Loaded:
    """The newest good checkpoint. Without ``replay`` that file is neither verified nor offered."""

    def paths() -> Iterator[Path]:
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        names = [aside[1] if (aside := ASIDE_NAME.fullmatch(name)) else name for name in names]
        steps = {int(name) for name in names if STEP_NAME.fullmatch(name)}
        for step in sorted(steps, reverse=True):
            yield from (folder / str(step), _aside(folder / str(step)))

    return _first_good(folder, paths, replay=replay)


def load(path: Path, *, replay: bool = True) -> Loaded:
    """The checkpoint in the folder ``path``."""
    final = path.absolute()
    return _first_good(path, lambda: (final, _aside(final)), replay=replay)


def load_best(run: Path) -> Loaded:
    return load(run / "best")


def _first_good(where: Path, paths: Callable[[], Iterable[Path]], *, replay: bool) -> Loaded:
    def present() -> list[tuple[Path, int]]:
        found = []
        for path in paths():
            with suppress(FileNotFoundError, NotADirectoryError):
                found.append((path, path.lstat().st_ino))
        return found

    problems: list[str] = []
    found: list[tuple[Path, int]] | None = None
    while found != (now := present()):  # once more if a run replaced them meanwhile
        found, problems = now, []
        for path, _ in found:
            try:
                return _read(path, problems, replay=replay)
            except (OSError, ValueError, RecursionError, MemoryError) as error:
                problems.append(f"checkpoint {path.name} was refused: {_reason(error)}")
    if not problems:
        raise BadRequest(f"no checkpoint in {where}", "Train first, or name another run.")
    remedy = "Bring the files back from a copy, or train again with another --out."
    raise Failure(f"no usable checkpoint in {where}: {problems[0]}", remedy)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        name = f"{Path(error.filename).name}: " if error.filename else ""
        return f"{name}{error.strerror or error}"
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    return str(error) or type(error).__name__


def _read(path: Path, problems: list[str], *, replay: bool) -> Loaded:
    if path.is_symlink():
        raise ValueError("it is a symbolic link")
    step, entries = _manifest(path)
    if not replay or not os.path.lexists(path / REPLAY):
        entries.pop(REPLAY, None)
    data = {name: _verified(path / name, entry) for name, entry in entries.items()}
    tree = read_json(data.pop(TREE)[: JSON_LIMIT + 1].tobytes(), TREE)
    arrays = {name: file_arrays(data[name], name) for name in data}
    weights, kept = ({k: v.copy() for k, v in arrays[f].items()} for f in (WEIGHTS, STATE))
    state = decode(tree.get("state"), kept)
    replayed = decode(tree.get("replay"), arrays[REPLAY]) if REPLAY in arrays else None
    if not isinstance(state, dict) or not isinstance(replayed, dict | None):
        raise ValueError(f"{TREE} holds no state")
    return Loaded(path, step, weights, state, replayed, problems)


def _manifest(path: Path) -> tuple[int, dict[str, Any]]:
    with _opened(path / MANIFEST) as file:
        content = read_json(file.read(1 << 20), MANIFEST)  # far more than any has
    found, step, files = content.get("format"), content.get("step"), content.get("files")
    if type(found) is int and found > FORMAT:
        versions = f"it has format {found}, this manyhands reads format {FORMAT}"
        raise ValueError(f"{versions}: a newer manyhands wrote it")
    if type(found) is not int or found != FORMAT or type(step) is not int or step < 0:
        raise ValueError(f"{MANIFEST} names no known format or no step")
    name = path.name.removeprefix(".").removesuffix("-old")
    if STEP_NAME.fullmatch(name) and int(name) != step:
        raise ValueError(f"{MANIFEST} is that of step {step}")
    if type(files) is not dict or not REQUIRED <= files.keys() <= REQUIRED | {REPLAY}:
        raise ValueError(f"{MANIFEST} does not list the files of a checkpoint")
    for name, entry in files.items():
        if type(entry) is not dict or entry.get("optional") is not (name == REPLAY):
            raise ValueError(f"{MANIFEST} is wrong about {name}")
    return step, files


def _opened(path: Path) -> BufferedReader:
    # Opening a pipe would wait for ever, following a link would leave the folder.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is not a plain file")
    return open(path, "rb")


def _verified(path: Path, entry: Mapping[str, Any]) -> Array:
    """The bytes of a file. Read before they are mapped: a bad sector met while reading is an
    error, met in a map it is a signal that kills."""
    with _opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) == 0 or size != entry.get("bytes"):
            raise ValueError(f"{path.name} has {size} bytes, which is not what was written")
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256"):
            raise ValueError(f"{path.name} is damaged: its SHA-256 is not the one in the manifest")
        return np.asarray(np.memmap(file, np.uint8, "r"))
