"""The folder is the registry: ``--algorithm x`` imports manyhands.algorithms.x.

``path/to/mine.py`` names a user's own file (types/users_files.py).
"""

from __future__ import annotations

import ast
import importlib
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from manyhands.types import BadRequest, users_files
from manyhands.types.users_files import is_path

HOME = Path(__file__).parents[1]
FLAGS = {
    "algorithms": "algorithm",
    "strategies": "strategy",
    "backends": "backend",
    "memory": "memory.kind",
}


def names(room: str) -> list[str]:
    """The members of a room: its files and folders."""
    entries = (HOME / room).iterdir()
    found = (e.stem for e in entries if e.suffix == ".py" or (e / "__init__.py").is_file())
    return sorted(name for name in found if not name.startswith("_"))


def about(room: str, name: str) -> str:
    """The first line of a member's docstring, read without importing it."""
    path = HOME / room / f"{name}.py"
    path = path if path.is_file() else HOME / room / name / "__init__.py"
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0]


def load(room: str, name: str) -> ModuleType:
    """The module of a member, or of a user's own file."""
    if is_path(name):
        return _complete(users_files.load(name), room, name)
    if name not in names(room):
        flag = FLAGS[room]
        raise unknown(f"--{flag}", name, names(room))
    return importlib.import_module(f"manyhands.{room}.{name}")


def _complete(module: ModuleType, room: str, name: str) -> ModuleType:
    """A user's file, if it has what a member of the room has."""
    needs = ("make",) if room == "backends" else ("Config", "make")
    for missing in (need for need in needs if not callable(getattr(module, need, None))):
        raise BadRequest(
            f"{name} has no {missing}, which every one of the {room} has",
            f"see {HOME / room} for how they look",
        )
    return module


def section_name(member: str) -> str:
    """The section of an algorithm or a strategy: a user's file has its file's name."""
    return Path(member.partition(":")[0]).stem if is_path(member) else member


def unknown(what: str, name: str, known: list[str]) -> BadRequest:
    """The refusal of a name that is not known, with the nearest one that is."""
    bare = {one.lstrip("-"): one for one in known}  # dashes that all have make nothing near
    near = get_close_matches(name.lstrip("-"), bare, n=1, cutoff=0.6)
    hint = f"did you mean {bare[near[0]]}?" if near else f"known: {', '.join(known)}"
    return BadRequest(f"{what} {name!r} is not known", hint)
