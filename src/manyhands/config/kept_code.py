"""Copies of the user's files in the run's folder, with their hashes, so that a run can be moved.

A file and its neighbours are in ``RUN/code/``; those from a second folder in ``RUN/code/2/``. The
originals are used as long as they are unchanged, since data may be beside them. Otherwise the
copies are used, after their hashes were checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from manyhands.config import registry, runfiles
from manyhands.types import BadRequest, Failure, users_files

if TYPE_CHECKING:
    from manyhands.config.plans import Plan

FOLDER = "code"
NAMED = (  # options that may name a file
    ("run", "algorithm"),
    ("run", "strategy"),
    ("run", "backend"),
    ("network", "torso"),
    ("env", "id"),
)
MOST = 4 * users_files.MOST
_CODE = re.compile(r"\s*[\w.]+:[\w./-]+\s*|.*\.py(:.*)?", re.S)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Copy(NamedTuple):
    file: str  # in the run's folder: code/wave.py
    sha256: str
    source: str  # the path it was copied from


class Kept(NamedTuple):
    """A file that the plan names, and then its neighbours."""

    copies: tuple[Copy, ...]

    @property
    def source(self) -> str:
        return self.copies[0].source


# --- Copying ------------------------------------------------------------------------------------


def keep(run: Path, layer: Mapping[str, Mapping[str, Any]], before: Iterable[Kept]) -> list[Kept]:
    """Copies the files that a plan names into the run's folder, unless they are there."""
    there = {kept.source: kept for kept in before}
    folders = {Path(kept.source).parent: Path(kept.copies[0].file).parent for kept in before}
    found = []
    for path in _paths(layer):
        if str(path) not in there:
            into = folders.setdefault(path.parent, _free(len(folders)))
            there[str(path)] = _copied(run, path, into)
        found.append(there[str(path)])
    return found


def _paths(layer: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    values = (str(layer[section][field]) for section, field in NAMED)
    return list(dict.fromkeys(Path(v.partition(":")[0]) for v in values if users_files.is_path(v)))


def _free(folders: int) -> Path:
    return Path(FOLDER) if not folders else Path(FOLDER) / str(folders + 1)


def _copied(run: Path, path: Path, into: Path) -> Kept:
    copies = []
    for file in (path, *users_files.neighbours(path).values()):
        target = into / file.relative_to(path.parent)
        content = users_files.read(file)
        try:
            with runfiles.opened(run, *target.parent.parts, make=True) as folder:
                folder.write(target.name, content)
        except OSError as error:
            what = f"{run / target} cannot be written: {error.strerror or error}"
            raise Failure(what, "free some space, or choose another --out") from error
        copies.append(Copy(str(target), users_files.digest(content), str(file)))
    return Kept(tuple(copies))


# --- Original or copy ---------------------------------------------------------------------------


def _shown(path: Path) -> Path:
    """The path relative to the working folder, if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def chosen(
    run: Path, layer: Mapping[str, Mapping[str, Any]], code: Iterable[Kept]
) -> tuple[dict[tuple[str, str], str], list[str]]:
    """The options that must name a copy instead of the original, and lines to print."""
    by_source = {kept.source: kept for kept in code}
    values, notes = {}, []
    for section, field in NAMED:
        path, colon, name = str(layer[section][field]).partition(":")
        kept = by_source.get(path) if users_files.is_path(path) else None
        if kept is not None and (why := _why_not_original(kept)):
            _verify(run, kept)
            values[section, field] = f"{(run / kept.copies[0].file).resolve()}{colon}{name}"
            notes.append(f"{why}: using the copy in {_shown(run / FOLDER)}")
    return values, list(dict.fromkeys(notes))


def _why_not_original(kept: Kept) -> str:
    for copy in kept.copies:
        path = Path(copy.source)
        try:
            same = users_files.digest(users_files.read(path)) == copy.sha256
        except BadRequest:
            same = False
        if not same:
            return f"{path} {'has changed since' if path.is_file() else 'is missing'}"
    return ""


def _verify(run: Path, kept: Kept) -> None:
    for copy in kept.copies:
        *folders, name = copy.file.split("/")
        try:
            with runfiles.opened(run, *folders) as folder:
                content = folder.read(name, users_files.LARGEST)
            why = "" if users_files.digest(content) == copy.sha256 else "is not the trained version"
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            raise BadRequest(
                f"{run / copy.file} {why}, and {copy.source} was changed or is missing",
                "restore one of them, or give another: --network my.py:Net, --algorithm my.py",
            )


def as_it_began(plan: Plan) -> Plan:
    """For a process that starts later: uses the copy of a file that was edited since."""
    if not plan.code:
        return plan
    values, notes = chosen(Path(plan.home), plan.as_layer(), plan.code)
    return replace(_with(plan, values), notes=tuple(notes))


def as_recorded(plan: Plan) -> Plan:
    """The plan with the original paths of all files, also of those used as copies."""
    came = {str(Path(plan.home, kept.copies[0].file)): kept.source for kept in plan.code}
    layer, values = plan.as_layer(), {}
    for section, field in NAMED:
        path, colon, name = str(layer[section][field]).partition(":")
        if path in came:
            values[section, field] = f"{came[path]}{colon}{name}"
    return _with(plan, values)


def _with(plan: Plan, values: Mapping[tuple[str, str], str]) -> Plan:
    for (section, field), value in values.items():
        attribute = "top" if section == "run" else section
        part: Any = replace(getattr(plan, attribute), **{field: value})
        plan = replace(plan, **{attribute: part})
    return plan


# --- What a run's configuration names -----------------------------------------------------------


def override(layer: dict[str, dict[str, Any]], *, network: str, algorithm: str) -> list[str]:
    """Replaces the run's network and algorithm by the user's; returns these."""
    network, algorithm = users_files.absolute(network), users_files.absolute(algorithm)
    if network:
        layer["network"]["torso"] = network
    if algorithm:
        values = layer.pop(registry.section_name(str(layer["run"]["algorithm"])), {})
        layer["run"]["algorithm"] = algorithm
        layer[registry.section_name(algorithm)] = values
    return [network, algorithm]


def named(layer: Mapping[str, Mapping[str, Any]], besides: Iterable[str]) -> list[str]:
    """The code that would run: files, module:Env-v0, and arguments that look like code."""
    values = [str(layer[section][field]) for section, field in NAMED if section != "env"]
    found = [value for value in values if users_files.is_path(value) and value not in besides]
    id = str(layer["env"]["id"])
    found += [id] if ":" in id or users_files.is_path(id) else []
    return found + _code_in(layer["env"].get("kwargs"))


def _code_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if _CODE.fullmatch(value) else []
    items = value.values() if isinstance(value, dict) else value
    return (
        [text for item in items for text in _code_in(item)] if isinstance(items, Iterable) else []
    )


# --- In config.json -----------------------------------------------------------------------------


def to_json(code: Iterable[Kept]) -> list[Any]:
    return [[copy._asdict() for copy in kept.copies] for kept in code]


def from_json(table: Any) -> tuple[Kept, ...]:
    """The inverse of `to_json`; ValueError for anything else."""
    found = tuple(Kept(tuple(Copy(**copy) for copy in kept)) for kept in table)
    for copy in (copy for kept in found for copy in kept.copies):
        if not all(isinstance(field, str) for field in copy):
            raise ValueError(f"{copy} is not a copy of a file")
        if not (_is_inside(copy.file) and _SHA256.fullmatch(copy.sha256)):
            raise ValueError(f"{copy} is not a copy of a file")
    if not all(kept.copies for kept in found) or sum(len(k.copies) for k in found) > MOST:
        raise ValueError("there are too many copies of files, or none")
    return found


def _is_inside(file: str) -> bool:
    """Whether the path names a file below `FOLDER`. Names may be any, but none leads up."""
    first, *names = file.split("/")
    bad = any(name in ("", ".", "..") or "\0" in name for name in names)
    return first == FOLDER and bool(names) and not bad
