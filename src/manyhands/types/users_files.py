"""A user's own Python files: ``path/to/mine.py``, or ``mine.py:Name`` for one thing in it.

A file runs once, and again if its content changes. As in a script, it can import modules beside it.
The modules that it imports from its folder are its neighbours.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from manyhands.types import BadRequest, T, delivered

LARGEST = 4 << 20  # bytes of a source file
MOST = 200  # neighbours
_loaded: dict[str, ModuleType] = {}  # by module name, which contains a hash of path and content
_sent: dict[str, delivered.Files] = {}  # by module name: the file and its neighbours, as loaded
_brought: dict[str, str] = {}  # neighbour in sys.modules -> digest at its import


def is_path(name: str) -> bool:
    return name.partition(":")[0].endswith(".py")


def absolute(value: T) -> T | str:
    """The absolute path of a user's file: a run may be resumed from another folder."""
    if not isinstance(value, str) or not is_path(value):
        return value
    path, colon, name = value.partition(":")
    return f"{Path(path).expanduser().resolve()}{colon}{name}"


def short(name: str) -> str:
    """A file's name without its folder, for a run's name. Other names are unchanged."""
    path, colon, rest = name.partition(":")
    return f"{Path(path).name}{colon}{rest}" if is_path(name) else name


def stem(name: str) -> str:
    """The name a file would have as a module."""
    return Path(name.partition(":")[0]).stem


def load(name: str) -> ModuleType:
    """The module of a file. Runs it at the first call."""
    path = Path(name.partition(":")[0]).expanduser().resolve()
    source = read(path)
    beside = neighbours(path)
    contents = {one: read(file) for one, file in beside.items()}
    digests = {one: digest(content) for one, content in contents.items()}
    told = digest(repr((str(path), digest(source), sorted(digests.items()))).encode())
    module_name = f"manyhands_user_{path.stem}_{told[:12]}"
    if module_name not in _loaded:
        _forget_others(digests)
        _loaded[module_name] = _run(path, source, module_name)
        by_path = {str(beside[one]): content for one, content in contents.items()}
        names = {one: str(file) for one, file in beside.items()}
        _sent[module_name] = delivered.Files({str(path): source, **by_path}, names)
        _brought.update({one: digests[one] for one in digests if one in sys.modules})
    return _loaded[module_name]


def loaded() -> delivered.Files:
    """All files that this process has loaded, for one that may not have them."""
    contents, modules = dict[str, bytes](), dict[str, str]()
    for files in _sent.values():
        contents.update(files.contents)
        modules.update(files.modules)
    return delivered.Files(contents, modules)


def load_name(path_and_name: str) -> Any:
    """``my.py:Net`` -> Net."""
    path, _, name = path_and_name.partition(":")
    module = load(path)
    if not name or not hasattr(module, name):
        raise no_such(path_and_name, offered(module))
    return getattr(module, name)


def offered(module: ModuleType) -> list[str]:
    return [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]


def no_such(path_and_name: str, names: list[str]) -> BadRequest:
    path, _, name = path_and_name.partition(":")
    return BadRequest(
        f"{path} has no {name!r}" if name else f"{path} does not say which class is meant",
        f"write {path}:NAME, one of {', '.join(names) or 'none found'}",
    )


def read(path: Path) -> bytes:
    if (sent := delivered.content(path)) is not None:
        return sent
    if not path.is_file():
        raise BadRequest(f"there is no file {path}", "give the path of an existing .py file")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}", "make it readable") from error
    if len(content) > LARGEST:
        raise BadRequest(f"{path} is larger than {LARGEST >> 20} MB", "give a Python file")
    return content


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- Running it ---------------------------------------------------------------------------------


def _run(path: Path, source: bytes, module_name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look up their module
    try:
        with _folder_first(str(path.parent)), warnings.catch_warnings():
            # An earlier import may have registered the same environments.
            warnings.filterwarnings("ignore", ".*Overriding environment")
            exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise BadRequest(
            f"{path} could not be imported: {type(error).__name__}: {error}",
            f"fix it; `python {path}` shows the whole traceback",
        ) from error
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it by name
    return module


@contextmanager
def _folder_first(folder: str) -> Iterator[None]:
    """Puts the folder first, as for a script; afterwards last, so that it hides no module."""
    importlib.invalidate_caches()  # new files may be there
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def _forget_others(digests: dict[str, str]) -> None:
    """Removes modules that have a neighbour's name but another content."""
    for name, told in digests.items():
        there = getattr(sys.modules.get(name), "__file__", None)
        if _brought.get(name) == told or there is None:
            continue
        file = Path(there)
        if name in _brought or not delivered.is_file(file) or digest(read(file)) != told:
            _brought.pop(name, None)
            del sys.modules[name]


# --- What it imports ----------------------------------------------------------------------------


def neighbours(path: Path) -> dict[str, Path]:
    """The modules in the file's folder that it imports, directly or not: name -> file."""
    found: dict[str, Path] = {}
    todo = [("", path)]
    while todo and len(found) < MOST:
        package, file = todo.pop()
        for name in _imported(file, package):
            there = _beside(path.parent, name)
            if there is not None and name not in found and there != path:
                found[name] = there
                inside = name if there.name == "__init__.py" else name.rpartition(".")[0]
                todo.append((inside, there))
    return found


def _beside(folder: Path, name: str) -> Path | None:
    top = name.partition(".")[0]
    if top == "manyhands" or top in sys.stdlib_module_names:
        return None
    base = folder.joinpath(*name.split("."))
    candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
    return next((each for each in candidates if delivered.is_file(each)), None)


def _imported(file: Path, package: str) -> Iterator[str]:
    """The names that a file may import; packages before their modules."""
    try:
        tree = ast.parse(read(file))
    except (SyntaxError, ValueError, RecursionError):
        return  # running it reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            start = ".".join(filter(None, (above, node.module or "")))
            wanted = [start, *(f"{start}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in filter(None, wanted):
            parts = name.strip(".").split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))
