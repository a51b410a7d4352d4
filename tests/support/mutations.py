"""Seeded changes to JSON trees with arrays, such as an attacker would make."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np

NUMBERS = (
    0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**30,
    10**400, 0.5, -0.0, 1e308, 1e-308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "1",
    "nan",
    "\0",
    "\ud800",
    [],
    {},
    [1],
    {"a": 1},
    [[]],
)
DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8")


def places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every node but the root."""
    found = [at] if at else []
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        found += [place for key, item in items for place in places(item, (*at, key))]
    return found


def mutated(tree: Any, rng: random.Random, *, arrays: bool = True) -> tuple[Any, str]:
    """A copy with one thing changed, and what that was."""
    tree = copy.deepcopy(tree)
    at = rng.choice(places(tree))
    parent = tree
    for key in at[:-1]:
        parent = parent[key]
    old = parent[at[-1]]
    if isinstance(old, np.ndarray) and arrays:
        new: Any = changed_array(old, rng)
    else:
        new = rng.choice((_number, _other, _near, _gone))(old, rng)
    if new is _GONE:
        del parent[at[-1]]
    else:
        parent[at[-1]] = new
    told = "gone" if new is _GONE else repr(new)[:80]
    return tree, f"{'/'.join(map(str, at))}: {told}"


_GONE = object()


def _number(_: Any, rng: random.Random) -> Any:
    return rng.choice(NUMBERS)


def _other(_: Any, rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(OTHERS))


def _gone(_: Any, __: random.Random) -> Any:
    return _GONE


def _near(old: Any, rng: random.Random) -> Any:
    if isinstance(old, bool | None):
        return rng.choice((0, 1, "no"))
    if isinstance(old, int | float):
        return rng.choice((old + 1, old - 1, -old, old * 1000, str(old)))
    if isinstance(old, str):
        return rng.choice((old + "x", old[:-1], old.upper(), old * 1000))
    if isinstance(old, list):
        return rng.choice((old + old, old[:-1], old[::-1], dict(enumerate(map(str, old)))))
    if isinstance(old, dict):
        return rng.choice(({**old, "more": 1}, list(old), dict(list(old.items())[:-1])))
    return 0


def changed_array(old: Any, rng: random.Random) -> Any:
    """Of another type, shape or with other values."""
    kind = rng.randrange(6)
    if kind == 0:
        with np.errstate(all="ignore"):
            return old.astype(rng.choice(DTYPES))
    if kind == 1:
        return rng.choice((old[None], old.reshape(-1), old.reshape(-1)[:-1], old[..., None], old.T))
    if kind == 2:
        return np.concatenate([old, old]) if old.ndim else np.stack([old, old])
    if kind == 3:
        return rng.choice((np.zeros(0, old.dtype), np.array(0, old.dtype), 0, None, old.tolist()))
    return _other_values(old, rng)


def _other_values(old: Any, rng: random.Random) -> Any:
    new = np.array(old)  # a copy
    if not new.size:
        return np.ones(1, old.dtype)
    if new.dtype.kind == "f":
        values: tuple[Any, ...] = (np.nan, np.inf, -1.0, 1e30, 0.0)
    elif new.dtype.kind == "b":
        new.reshape(-1)[rng.randrange(new.size)] ^= True
        return new
    else:
        ends = np.iinfo(new.dtype)
        values = (ends.min, ends.max, 0, 1, 7)
    if rng.random() < 0.5:
        new[...] = rng.choice(values)
    else:
        new.reshape(-1)[rng.randrange(new.size)] = rng.choice(values)
    return new
