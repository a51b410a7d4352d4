"""Values of a checkpoint, looked at before anything uses them.

Its hashes say that it is as it was written, not that it was written by us. What is wrong is a
ValueError or, where a name is missing, a KeyError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

MOST = 2**53  # counts: exact as a float, and more than any run comes to
# What restoring raises from a state that is not of this run.
UNFIT = (LookupError, ValueError, RuntimeError, TypeError, AttributeError, ArithmeticError)
SHOWN = 40  # characters of a wrong value that a message repeats


def count(state: Mapping[str, Any], name: str, *, least: int = 0, most: int = MOST) -> int:
    value = state[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {_shown(value)}, not a whole number from {least} to {most:,}")
    return value


def number(state: Mapping[str, Any], name: str, *, least: float = -MOST) -> float:
    """As it was written: a whole number stays one."""
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
    """Of that shape and type; finite, where it is of floating-point numbers."""
    value = state[name]
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} is {_shown(value)}, not an array")
    if (value.shape, value.dtype) != (like.shape, like.dtype):
        told = f"{value.dtype}{list(value.shape)}, not {like.dtype}{list(like.shape)}"
        raise ValueError(f"{name} is {told}")
    return finite(value, name)


def between(state: Mapping[str, Any], name: str, like: Any, low: float, high: float) -> Any:
    """Such an array, of values from `low` to `high`."""
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
