"""manyhands: distributed deep reinforcement learning in which the way of sharing is a flag.

Importing it is light: torch and ray are imported when they are first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyhands.runs.api import resume, train
    from manyhands.runs.policies import Policy, load
    from manyhands.runs.run import Run
    from manyhands.types import BadRequest, Failure, Refusal

__version__ = "0.2.0"
__all__ = ["BadRequest", "Failure", "Policy", "Refusal", "Run", "load", "resume", "train"]

_HOME = {
    "Policy": "runs.policies",
    "load": "runs.policies",
    "Run": "runs.run",
    "resume": "runs.api",
    "train": "runs.api",
    "BadRequest": "types",
    "Failure": "types",
    "Refusal": "types",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'manyhands' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"manyhands.{_HOME[name]}"), name)
