"""The shape of the house: which room imports which, how light it is, what it may not contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "manyhands"
FILES = sorted(SRC.rglob("*.py"))
TESTS = ROOT / "tests"
TEST_FILES = sorted(TESTS.rglob("*.py"))
LONGEST_FILE_LINES, LONGEST_FUNCTION_LINES = 300, 40
LONGEST_TEST_NAME = 60

# What each room may import of the others, from the lowest up. "*" is everything below `cli`.
MAY_SEE = {
    "types": set(),
    "maths": {"types"},
    "networks": {"types", "maths"},
    "envs": {"types"},
    "memory": {"types", "maths"},
    "optim": {"types", "maths"},
    "algorithms": {"types", "maths", "networks"},
    "strategies": {"types", "maths", "optim"},
    "backends": {"types"},
    "config": {"types", "networks", "envs", "memory", "optim"},
    "roles": {"types", "maths", "networks", "envs", "memory", "optim", "config"},
    "runs": {"*"},
    "viewing": {"types", "envs", "config", "roles", "runs"},
    "planning": {"types", "config", "roles", "runs", "viewing"},
    "compare": {"types", "backends", "config", "roles", "runs", "viewing"},
    "cli": {"*"},
    "__init__": {"*"},
    "__main__": {"cli"},
}
ABOVE = {"runs": {"compare", "planning", "cli"}}


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
    assert "numba" not in tops or where == "memory/storage/compiled.py"


OPENS = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "touch", "fdopen"}
OPENED = {  # by file, with what they open: none of it is a file of a run's folder
    "config/runfiles.py": {"os.fdopen", "os.open"},
    "runs/folder_lock.py": {"os.open"},  # the folder itself, to lock it
    "config/presets.py": {"(PRESETS / kind / f'{name}.toml').read_text"},
    "config/registry.py": {"path.read_text"},  # our own code
    "maths/compiled.py": {  # the user's cache folder, which nobody else may write to
        "file.read_bytes",
        "reason.write_text",
        "os.open",
        "refusal.read_text",
    },
    "types/folders.py": {"file.read_text"},  # likewise
    "types/users_files.py": {"path.open"},  # the user's code
    "types/output.py": {"os.fdopen", "os.open"},  # a device
    "types/machine.py": {
        "CPUINFO.read_text",
        "OWN_CGROUPS.read_text",
        "(group / limit).read_text",
        "(group / usage).read_text",
        "(group / 'memory.stat').read_text",
    },
    "viewing/video.py": {"av.open"},  # a file that runfiles opened
    "compare/study.py": {"Path(name).read_text"},  # the user's study
    "compare/report.py": {"PAGE.read_text"},
}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_files_of_runs_are_opened_in_one_place(file: Path) -> None:
    """A run's folder may be somebody else's: see config/runfiles.py."""
    if room_of(file) == "backends":
        return  # shared memory and pipes
    calls = [
        node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
    ]
    opens = {
        ast.unparse(call)
        for call in calls
        if (isinstance(call, ast.Attribute) and call.attr in OPENS)
        or (isinstance(call, ast.Name) and call.id == "open")
    }
    assert opens == OPENED.get(str(file.relative_to(SRC)), set())


def test_importing_manyhands_is_light() -> None:
    code = (
        "import manyhands, manyhands.types, manyhands.envs, manyhands.memory, sys;"
        "heavy = {'torch', 'ray', 'numba', 'gymnasium', 'ale_py', 'matplotlib', 'PIL', 'av'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# How files are counted: every file of the package that Python executes for
# `import manyhands.algorithms.dqn` in a new process, the algorithm itself included. Empty
# `__init__.py` files do not count. Names that are loaded when they are first used count only
# if the import alone uses them; imports for type checkers do not count.
MOST_FILES_OF_DQN = 12


def test_to_know_dqn_few_files_are_read() -> None:
    code = (
        "import manyhands.algorithms.dqn, sys;"
        "print(*[m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'manyhands'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    files = [Path(name).relative_to(SRC) for name in done.stdout.split()]
    read = sorted(str(file) for file in files if (SRC / file).read_text())
    assert "algorithms/dqn.py" in read
    assert len(read) <= MOST_FILES_OF_DQN, read


def test_names_that_types_loads_late_are_there() -> None:
    from manyhands import types

    tree = ast.parse((SRC / "types" / "__init__.py").read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {a.name for node in imported if "manyhands" in str(node.module) for a in node.names}
    assert {"Algorithm", "Backend", "Batch", "BadRequest"} <= names
    for name in names:
        assert getattr(types, name) is not None
    with pytest.raises(ImportError, match="nonsense"):
        exec("from manyhands.types import nonsense")


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


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SRC)))
def test_functions_stay_short(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= LONGEST_FUNCTION_LINES, f"{node.name} has {lines} lines"


# --- Tests --------------------------------------------------------------------------------------

BESIDE_ROOMS = {"contracts", "project", "support"}


def test_folders_of_tests_are_rooms() -> None:
    folders = {file.relative_to(TESTS).parts[0] for file in TEST_FILES if file.parent != TESTS}
    assert folders <= set(MAY_SEE) | BESIDE_ROOMS
    assert not list(TESTS.glob("test_*.py")), "a test lies in the folder of its room"


def test_files_of_tests_have_different_names() -> None:
    """pytest imports them by their names alone."""
    names = [file.name for file in TEST_FILES if file.name.startswith("test_")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("file", TEST_FILES, ids=lambda f: str(f.relative_to(TESTS)))
def test_no_test_module_imports_another(file: Path) -> None:
    modules = {part for name in imports(file) for part in name.split(".")}
    assert not modules & {test.stem for test in TEST_FILES if test.stem.startswith("test_")}
    assert "conftest" not in modules, "what tests share is in tests/support, or a fixture"


@pytest.mark.parametrize("file", TEST_FILES, ids=lambda f: str(f.relative_to(TESTS)))
def test_names_of_tests_fit_a_line(file: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef)]
    names = [function.name for function in functions if function.name.startswith("test_")]
    assert [name for name in names if len(name) > LONGEST_TEST_NAME] == []


def test_heavy_tests_exist() -> None:
    code = "\n".join(file.read_text() for file in TEST_FILES)
    defined = set(re.findall(r"def (test_\w+)", code))
    assert set((TESTS / "heavy.txt").read_text().split()) <= defined
