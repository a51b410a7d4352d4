"""Hyper-parameters: written once, beside the code that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TypeVar

T = TypeVar("T")


def knob(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> T:
    """A dataclass field with its reason and its range: ``low <= x <= high``, ``above < x``."""
    metadata = {"doc": doc, "low": low, "above": above, "high": high, "choices": tuple(choices)}
    if isinstance(default, list | dict):
        raise TypeError("a knob's default is immutable: use a tuple")
    made: T = field(default=default, metadata=metadata)
    return made
