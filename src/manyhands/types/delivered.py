"""The user's files that came with a job, as main loaded them. They are imported from memory.

Another node may lack them, and here they may have been edited since the run began. Their paths are
those on main's machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class Files(NamedTuple):
    """The content of files by their paths, and the modules that are beside them."""

    contents: Mapping[str, bytes]
    modules: Mapping[str, str]  # name -> path


_contents: dict[str, bytes] = {}
_modules: dict[str, str] = {}


def put(files: Files) -> None:
    """From now on these files are here."""
    _contents.update(files.contents)
    _modules.update(files.modules)
    if _modules and not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def content(path: Path) -> bytes | None:
    return _contents.get(str(path))


def is_file(path: Path) -> bool:
    return str(path) in _contents or path.is_file()


class _Loader(SourceLoader):
    def get_filename(self, name: str) -> str:
        return _modules[name]

    def get_data(self, path: str) -> bytes:
        found = _contents.get(str(path))
        if found is None:  # a compiled file
            raise OSError(f"{path} was not sent")
        return found


class _Finder(MetaPathFinder):
    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if name not in _modules:
            return None
        is_package = Path(_modules[name]).name == "__init__.py"
        return spec_from_loader(name, _Loader(), is_package=is_package)
