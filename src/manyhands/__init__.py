"""manyhands: distributed deep reinforcement learning in which the way of sharing is a flag.

Importing it is light: torch and ray are imported when they are first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.evaluate import Policy, load
    from manyhands.run import Run, resume, train
    from manyhands.types import BadRequest, Failure, Refusal

__version__ = "0.1.0"
__all__ = ["BadRequest", "Failure", "Policy", "Refusal", "Run", "load", "resume", "train"]

_HOME = {
    "Policy": "evaluate",
    "load": "evaluate",
    "Run": "run",
    "resume": "run",
    "train": "run",
    "BadRequest": "types",
    "Failure": "types",
    "Refusal": "types",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"manyhands.{_HOME[name]}"), name)
