"""The user's code on nodes that lack it.

Files that the user named go along with every job (`types/delivered.py`). Packages go with
``--ray.ship``: Ray sends them once, and puts them where node runners and their processes import
from.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from manyhands.backends.processes.child import NO_MODULE
from manyhands.backends.ray.nodes import Node
from manyhands.types import BadRequest, Failure

MOST_BYTES = 500 << 20  # Ray refuses 512 MB
KINDS = (".py", ".whl", ".zip")
LEFT_OUT = (".git", ".venv", "venv", "__pycache__")


def runtime_env(ship: str) -> dict[str, Any]:
    """What `ray.init` is told. Refuses paths that are not packages or modules."""
    paths = [_checked(Path(word.strip()).expanduser()) for word in ship.split(",") if word.strip()]
    return {"py_modules": [str(path) for path in paths]} if paths else {}


def _checked(path: Path) -> Path:
    if not path.is_dir() and not (path.is_file() and path.suffix in KINDS):
        raise BadRequest(
            f"--ray.ship {path}: there is no such package or module",
            f"give folders or files ({', '.join(KINDS)}), separated by commas",
        )
    size = sum(file.stat().st_size for file in _files(path))
    if size > MOST_BYTES:
        raise BadRequest(
            f"--ray.ship {path} has {size >> 20} MB, and Ray sends at most {MOST_BYTES >> 20} MB",
            "give the package alone, without data",
        )
    return path.resolve()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    inside = (file for file in path.rglob("*") if not set(LEFT_OUT) & set(file.parts))
    return [file for file in inside if file.is_file()]


def named(node: Node, what: str, remedy: str) -> Failure:
    """A failure of a process, with the name of its node, and how to send what is missing there."""
    missing = re.search(r"[nN]o module (named )?'([\w.]+)'", what)
    if missing and not what.startswith(NO_MODULE):
        remedy = "install it there"
    if missing:
        remedy += f", or send it along: --ray.ship PATH-OF-{missing[2].partition('.')[0]}"
    return Failure(f"node {node.name}: {what}", remedy)
