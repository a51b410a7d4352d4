"""Where a run came from: the command or the call, the versions, the commit."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import manyhands

LONGEST_VALUE = 200  # characters of one argument in a recorded call
LIBRARIES = ("torch", "numpy", "gymnasium", "ale-py", "box2d", "safetensors", "ray")


def command_line() -> str:
    """The command the user typed, or the script that called us."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    name = "manyhands" if name in ("manyhands", "__main__.py") else name
    return shlex.join([name, *sys.argv[1:]])


def call_text(name: str, first: Any, options: Mapping[str, Any]) -> str:
    """A call from Python as source text: ``mh.train("cartpole", recipe="dqn")``."""
    given = [f"{key}={_text(value)}" for key, value in options.items() if value is not None]
    return f"{name}({', '.join([_text(first), *given])})"


def _text(value: Any) -> str:
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items()) + "}"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return textwrap.shorten(repr(value), LONGEST_VALUE, placeholder=" …")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    found["manyhands"] = manyhands.__version__
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found | {"commit": commit()}


def commit() -> str:
    """The commit of the checkout that this package runs from; empty if it was installed."""
    here = Path(manyhands.__file__).resolve().parent
    try:
        top = subprocess.run(
            ["git", "rev-parse", "--show-toplevel", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    is_ours = len(top) == 2 and here == Path(top[0]).resolve() / "src" / "manyhands"
    return top[1] if is_ours else ""
