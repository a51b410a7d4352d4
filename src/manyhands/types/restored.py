"""Checks the values of a checkpoint before anything uses them.

Hashes show that a file is unchanged, not that we wrote it. A wrong value raises ValueError, a
missing name KeyError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MOST = 2**53  # the largest count: exact as a float, and never reached
# What `restore` may raise if the state belongs to another run.
UNFIT = (
    LookupError,
    ValueError,
    RuntimeError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
)
SHOWN = 40  # characters of a wrong value that a message repeats


def count(state: Mapping[str, Any], name: str, *, least: int = 0, most: int = MOST) -> int:
    value = state[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {_shown(value)}, not a whole number from {least} to {most:,}")
    return value


def number(state: Mapping[str, Any], name: str, *, least: float = -MOST) -> float:
    """An int stays an int."""
    value: float = state[name]
    if type(value) not in (int, float) or not least <= value <= MOST:
        raise ValueError(f"{name} is {_shown(value)}, not a number")
    return value


def number_or_none(state: Mapping[str, Any], name: str) -> float | None:
    return None if state[name] is None else number(state, name)


def numbers_or_none(
    state: Mapping[str, Any], name: str, names: Iterable[str]
) -> dict[str, float] | None:
    return None if state[name] is None else numbers(state[name], names)


def numbers(
    state: Mapping[str, Any], names: Iterable[str], *, least: float = -MOST
) -> dict[str, float]:
    return {name: number(state, name, least=least) for name in names}


def array(state: Mapping[str, Any], name: str, like: Any) -> Any:
    """An array with the shape and type of `like`. Floats must be finite."""
    value = state[name]
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} is {_shown(value)}, not an array")
    if (value.shape, value.dtype) != (like.shape, like.dtype):
        told = f"{value.dtype}{list(value.shape)}, not {like.dtype}{list(like.shape)}"
        raise ValueError(f"{name} is {told}")
    return finite(value, name)


def between(state: Mapping[str, Any], name: str, like: Any, low: float, high: float) -> Any:
    """The same, with values from `low` to `high`."""
    value = array(state, name, like)
    if value.size and not (low <= value.min() and value.max() <= high):
        raise ValueError(f"{name} has values below {low:,} or above {high:,}")
    return value


def finite(value: Any, name: str) -> Any:
    number = np.asarray(value)
    if number.dtype.kind == "f" and not np.isfinite(number).all():
        raise ValueError(f"{name} is not finite")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
