"""The shape of the house: who may import whom, how light it is, what it may not contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "manyhands"
FILES = sorted(SRC.rglob("*.py"))
LONGEST_FILE_LINES = 400

# What each room or file may import of the house. "*" is everything.
MAY_SEE = {
    "errors": set(),
    "knobs": set(),
    "posts": set(),
    "types": {"errors", "knobs", "posts"},
    "envs": {"types"},
    "networks": {"types"},
    "ram": set(),
    "memory": {"types", "ram"},
    "returns": set(),
    "algorithms": {"types", "networks", "returns"},
    "optim": {"types"},
    "strategies": {"types", "optim"},
    "backends": {"types", "ram"},
    "metrics": {"types"},
    "actor": {"types", "metrics"},
    "learner": {"types", "metrics", "optim"},
    "counters": {"types", "metrics", "actor", "learner"},
    "dues": {"types", "counters", "circles", "memory"},
    "circles": {"types", "config", "counters"},
    "registry": {"types"},
    "signals": set(),
    "display": set(),
    "treefile": {"types"},
    "checkpoint": {"types", "treefile"},
    "published": {"types"},
    "shelf": {"types"},
    "checks": {"types", "registry", "config"},  # of config the type alone
    "config": {"types", "registry", "checks", "envs", "memory", "networks", "optim"},
    "rundir": {"types", "config", "checkpoint"},
    "snapshots": {"types", "checkpoint", "treefile"},
    "video": {"types"},
    "compare": {"types", "config", "registry", "rundir", "checkpoint", "doctor", "display"}
    | {"metrics", "plot", "signals", "backends", "cli"},
    "plot": {"types", "rundir"},
    "precision": {"types", "config"},  # of config the type alone
    "doctor": {"ram", "precision", "rundir"},
    "play": {"types", "envs", "evaluate"},
    "record": {"*"},
    "watch": {"*"},
    "words": {"types", "config", "registry"},
    "worker": {"*"},
    "crew": {"*"},
    "members": {"*"},
    "team": {"*"},
    "evaluate": {"*"},
    "progress": {"types", "metrics", "config", "evaluate", "snapshots", "crew"},
    "faultlog": {"types", "crew", "progress", "rundir"},
    "saving": {"types", "config", "crew", "progress", "rundir"}
    | {"checkpoint", "evaluate", "snapshots"},
    "run": {"*"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"cli"},
}
ABOVE = {
    "run": {"cli"},
    "crew": {"run", "cli", "progress", "team"},
    "team": {"run", "cli", "progress"},
    "members": {"run", "cli", "progress", "crew", "team"},
    "worker": {"run", "cli", "progress", "evaluate", "crew", "members", "team"},
    "evaluate": {"run", "cli", "play", "record", "watch"},
    "record": {"run", "cli", "watch"},
    "watch": {"run", "cli"},
}


def room_of(file: Path) -> str:
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """The top-level names of every import, those of the house as 'manyhands.room'."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "manyhands":
            found |= {f"manyhands.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def house_imports(file: Path) -> set[str]:
    names = {n.split(".")[1] for n in imports(file) if n.startswith("manyhands.")}
    return names - {room_of(file), "__version__"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_imports_go_one_way(file: Path) -> None:
    room = room_of(file)
    assert room in MAY_SEE, f"{room} is new: say here what it may see"
    allowed = MAY_SEE[room]
    seen = house_imports(file)
    if "*" not in allowed:
        assert seen <= allowed, f"{file} may not import {seen - allowed}"
    assert not seen & ABOVE.get(room, set())


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_only_their_own_rooms_import_ray_ale_and_numba(file: Path) -> None:
    tops = {name.split(".")[0] for name in imports(file)}
    where = str(file.relative_to(SRC))
    assert "ray" not in tops or where.startswith("backends/ray/")
    assert "ale_py" not in tops or where == "envs/atari.py"
    assert "numba" not in tops or where == "memory/compiled.py"


def test_importing_manyhands_is_light() -> None:
    code = (
        "import manyhands, manyhands.types, manyhands.envs, manyhands.memory, sys;"
        "heavy = {'torch', 'ray', 'numba', 'gymnasium', 'ale_py', 'matplotlib', 'PIL', 'av'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there() -> None:
    import manyhands

    for name in manyhands.__all__:
        assert getattr(manyhands, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = manyhands.nonsense


def test_no_room_for_odds_and_ends() -> None:
    names = {p.stem for p in SRC.rglob("*") if p.is_dir() or p.suffix == ".py"}
    assert not names & {"common", "utils", "util", "core", "helpers", "base", "misc"}


def test_no_recipe_name_in_the_code() -> None:
    """A published name is a preset, not a branch. Names of algorithms and strategies are files."""
    members = {p.stem for room in ("algorithms", "strategies") for p in (SRC / room).glob("*.py")}
    recipes = {p.stem for p in (SRC / "presets" / "recipes").glob("*.toml")} - members
    assert recipes
    for file in FILES:
        words = set(re.findall(r"[\w-]+", file.read_text()))
        assert not words & recipes, f"{file} names {words & recipes}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_files_stay_readable(file: Path) -> None:
    assert file.read_text().count("\n") <= LONGEST_FILE_LINES
