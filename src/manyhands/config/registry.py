"""The folder is the registry: ``--algorithm x`` imports manyhands.algorithms.x.

``path/to/mine.py`` names a user's own file (types/users_files.py).
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from manyhands.types import BadRequest, folders, users_files
from manyhands.types.folders import unknown as unknown
from manyhands.types.users_files import is_path

if TYPE_CHECKING:
    from manyhands.types.backend import BackendFile

HOME = Path(__file__).parents[1]
FLAGS = {
    "algorithms": "algorithm",
    "strategies": "strategy",
    "backends": "backend",
    "memory": "memory.kind",
}


def names(room: str) -> list[str]:
    """The members of a room: its files and folders that have `make`."""
    return folders.names(HOME / room)


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
    """Refuses a user's file that lacks what every member of the room has."""
    needs = ("make",) if room == "backends" else ("Config", "make")
    for missing in (need for need in needs if not callable(getattr(module, need, None))):
        raise BadRequest(
            f"{name} has no {missing}, which every file of {room} needs",
            f"see {HOME / room} for examples",
        )
    return module


def backend(name: str) -> BackendFile:
    """A backend's file. A user's may leave out what has a default."""
    found: Any = load("backends", name)
    vars(found).setdefault("MOST_PROCESSES", None)
    vars(found).setdefault("CPU_ONLY", False)
    vars(found).setdefault("Config", None)
    file: BackendFile = found
    return file


def with_islands() -> list[str]:
    """The strategies that have islands."""
    found = {name: load("strategies", name).Config for name in names("strategies")}
    return [name for name, config in found.items() if config.has_islands]


SENT_BETWEEN_NODES = {"shards", "sum", "pair"}  # what learners on several nodes send


def between_nodes() -> list[str]:
    """The strategies whose learners may be on several nodes."""
    found = {name: load("strategies", name).Config for name in names("strategies")}
    return [
        name
        for name, made in found.items()
        if made.has_islands or made().sharing.sends in SENT_BETWEEN_NODES
    ]


def shared() -> list[str]:
    """The strategies that several learners can have."""
    return [
        name for name in names("strategies") if load("strategies", name).Config.shares_parameters
    ]


def section_name(member: str) -> str:
    """The section of an algorithm or a strategy. For a user's file it is the file's name."""
    return Path(member.partition(":")[0]).stem if is_path(member) else member
