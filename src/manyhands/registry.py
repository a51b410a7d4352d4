"""The folder is the registry: ``--algorithm x`` imports manyhands.algorithms.x.

``path/to/mine.py`` names a user's own file, ``mine.py:Name`` one thing in it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from manyhands.types import BadRequest, T

HOME = Path(__file__).parent
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
        return _complete(load_file(name), room, name)
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


def is_path(name: str) -> bool:
    return name.partition(":")[0].endswith(".py")


def section_name(member: str) -> str:
    """The section of an algorithm or a strategy: a user's file has its file's name."""
    return Path(member.partition(":")[0]).stem if is_path(member) else member


def absolute(value: T) -> T | str:
    """The path of a user's file from the root, as a run may be resumed from another folder."""
    if not isinstance(value, str) or not is_path(value):
        return value
    path, colon, name = value.partition(":")
    return f"{Path(path).expanduser().resolve()}{colon}{name}"


def load_file(name: str) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise BadRequest(f"there is no file {name}", "give the path of an existing .py file")
    module_name = f"manyhands_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their own module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadRequest(
            f"{name} could not be imported: {type(error).__name__}: {error}",
            f"mend it; `python {name}` shows the whole traceback",
        ) from error
    cloudpickle.register_pickle_by_value(module)  # a worker's process cannot import it by its name
    return module


def load_name(path_and_name: str) -> Any:
    """``my.py:Net`` -> Net."""
    path, _, name = path_and_name.partition(":")
    module = load_file(path)
    if not name or not hasattr(module, name):
        offered = [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        raise BadRequest(
            f"{path} has no {name!r}" if name else f"{path} does not say which class is meant",
            f"write {path}:NAME, one of {', '.join(offered) or 'none found'}",
        )
    return getattr(module, name)


def unknown(what: str, name: str, known: list[str]) -> BadRequest:
    """The refusal of a name that is not known, with the nearest one that is."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return BadRequest(f"{what} {name!r} is not known", hint)
