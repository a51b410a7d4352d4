"""Reads checkpoint folders. It runs no code and trusts no name, size or offset in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.config import runfiles
from manyhands.config.runfiles import JSON_LIMIT, Directory
from manyhands.runs.checkpoint_files import (
    FORMAT,
    FORMATS,
    MANIFEST,
    REPLAY,
    STATE,
    STEP_NAME,
    TREE,
    WEIGHTS,
    decode,
    file_arrays,
    read_json,
)
from manyhands.types import Array, BadRequest, Failure, State, machine
from manyhands.types.sizes import human

MANIFEST_LIMIT = 1 << 20  # bytes: no manifest comes near it
REQUIRED = {WEIGHTS, STATE, TREE}


@dataclass(frozen=True)
class Loaded:
    """A checkpoint whose every byte was verified."""

    path: Path
    step: int
    weights: dict[str, Array]
    state: State
    replay: State | None  # None: pruned, absent or not asked for. Arrays are read-only memory maps
    problems: list[str]  # one sentence for each newer checkpoint that was refused
    format: int = FORMAT


def first_good(
    shown: Path,
    parent: tuple[Path, *tuple[str, ...]],
    names: Callable[[Directory], Iterable[str]],
    *,
    replay: bool,
) -> Loaded:
    """The first of `names` that passes all checks.

    `parent`: the folder they are in, as a path that the user chose and names below it.
    `shown`: the path for messages.
    """
    problems: list[str] = []
    try:
        with runfiles.opened(*parent) as there:
            if (loaded := _first_good_of(there, names, problems, replay=replay)) is not None:
                return loaded
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        problems.append(_reason(error))
    if not problems:
        raise BadRequest(f"no checkpoint in {shown}", "Train first, or name another run.")
    remedy = "Bring the files back from a copy, or train again with another --out."
    raise Failure(f"no usable checkpoint in {shown}: {problems[0]}", remedy)


def _first_good_of(
    there: Directory,
    names: Callable[[Directory], Iterable[str]],
    problems: list[str],
    *,
    replay: bool,
) -> Loaded | None:
    def present() -> list[tuple[str, int]]:
        stats = [(name, there.look(name)) for name in names(there)]
        return [(name, stat.st_ino) for name, stat in stats if stat is not None]

    tried: list[tuple[str, int]] | None = None
    while tried != (now := present()):  # again if a running training replaced some meanwhile
        tried = now
        problems.clear()
        for name, _ in tried:
            try:
                return _read(there, name, problems, replay=replay)
            except (OSError, ValueError, RecursionError, MemoryError) as error:
                problems.append(f"checkpoint {name} was refused: {_reason(error)}")
    return None


def _read(there: Directory, name: str, problems: list[str], *, replay: bool) -> Loaded:
    with there.folder(name) as folder:
        version, step, entries = _manifest(folder, name)
        if not replay or folder.look(REPLAY) is None:
            entries.pop(REPLAY, None)
        _refuse_too_large(folder)
        data = {name: _verified(folder, name, entry) for name, entry in entries.items()}
    tree = read_json(data.pop(TREE)[: JSON_LIMIT + 1].tobytes(), TREE)
    arrays = {name: file_arrays(data[name], name) for name in data}
    weights, kept = ({k: v.copy() for k, v in arrays[f].items()} for f in (WEIGHTS, STATE))
    state = decode(tree.get("state"), kept)
    replayed = decode(tree.get("replay"), arrays[REPLAY]) if REPLAY in arrays else None
    if not isinstance(state, dict) or not isinstance(replayed, dict | None):
        raise ValueError(f"{TREE} holds no state")
    return Loaded(folder.path, step, weights, state, replayed, problems, version)


def _manifest(folder: Directory, name: str) -> tuple[int, int, dict[str, Any]]:
    """Format, step, and the entry of each file."""
    content = read_json(folder.read(MANIFEST, MANIFEST_LIMIT), MANIFEST)
    version, step, files = content.get("format"), content.get("step"), content.get("files")
    if type(version) is int and version > FORMAT:
        versions = f"it has format {version}, this manyhands reads format {FORMAT}"
        raise ValueError(f"{versions}: a newer manyhands wrote it")
    if type(version) is not int or version not in FORMATS or type(step) is not int or step < 0:
        raise ValueError(f"{MANIFEST} names no known format or no step")
    name = name.removeprefix(".").removesuffix("-old")
    if STEP_NAME.fullmatch(name) and int(name) != step:
        raise ValueError(f"{MANIFEST} is that of step {step}")
    if type(files) is not dict or not REQUIRED <= files.keys() <= REQUIRED | {REPLAY}:
        raise ValueError(f"{MANIFEST} does not list the files of a checkpoint")
    for name, entry in files.items():
        if type(entry) is not dict or entry.get("optional") is not (name == REPLAY):
            raise ValueError(f"{MANIFEST} is wrong about {name}")
    return version, step, files


def _refuse_too_large(folder: Directory) -> None:
    """Weights and state are copied into memory; the replay stays in its file."""
    stats = (folder.look(name) for name in (WEIGHTS, STATE))
    size, free = sum(stat.st_size for stat in stats if stat), machine.free_bytes()
    if size > free:
        raise ValueError(f"its weights and state take {human(size)}, {human(free)} are free")


def _verified(folder: Directory, name: str, entry: Mapping[str, Any]) -> Array:
    """A memory map of a file whose size and hash are right.

    The file is read before it is mapped: a bad sector raises an error in a read, but kills the
    process in a map.
    """
    with folder.reading(name) as file:
        if (size := os.fstat(file.fileno()).st_size) == 0 or size != entry.get("bytes"):
            raise ValueError(f"{name} has {size} bytes, which is not what was written")
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256"):
            raise ValueError(f"{name} is damaged: its SHA-256 is not the one in the manifest")
        return np.asarray(np.memmap(file, np.uint8, "r"))


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        name = f"{Path(error.filename).name}: " if error.filename else ""
        return f"{name}{error.strerror or error}"
    if isinstance(error, RecursionError):
        return "its JSON is nested too deeply"
    return str(error) or type(error).__name__
