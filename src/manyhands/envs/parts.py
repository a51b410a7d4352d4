"""Discrete observations, and those of several parts (Dict, Tuple, MultiDiscrete, …).

- If every part is discrete, the result is a vector of whole numbers, each counted from 0.
- Else the parts are flattened into a vector, in the order of
  `gymnasium.wrappers.FlattenObservation`, with Discrete numbers one-hot.
- One key of a Dict can be chosen.

`observations` converts the result further. `Parts` is plain data; a checkpoint holds it beside the
`Reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.types import Array, BadRequest, State

Reader = Callable[[Any], Any]


class Unreadable(Exception):
    """A space that cannot become numbers."""


@dataclass(frozen=True)
class Leaf:
    """A part without parts: numbers, or one-hot numbers that begin at `starts`."""

    path: tuple[str | int, ...]  # keys and indices
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()  # for a Discrete or MultiDiscrete space
    starts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(self.counts) if self.counts else prod(self.shape)

    def of(self, given: Any) -> Any:
        for step in self.path:
            given = given[step]
        return given

    def reader(self) -> Reader:
        if not self.counts:
            return self._numbers
        index, counts = self.index_reader(), np.array(self.counts)
        firsts = np.cumsum(counts) - counts

        def read(given: Any) -> Array:
            row = np.zeros(self.size, np.float32)
            row[firsts + index(given)] = 1.0
            return row

        return read

    def index_reader(self) -> Reader:
        """Converts discrete numbers to numbers from 0 on."""
        counts, starts = np.array(self.counts), np.array(self.starts)

        def read(given: Any) -> Array:
            chosen: Array = self._numbers(given) - starts
            if chosen.dtype.kind not in "iu" or not ((chosen >= 0) & (chosen < counts)).all():
                raise ValueError(f"{given} is not in its Discrete space: a whole number is")
            return chosen

        first, count = self.starts[0], self.counts[0]

        def read_one(given: Any) -> int:
            chosen = index(given) - first
            if not 0 <= chosen < count:
                ends = f"from {first} to {first + count - 1}"
                raise ValueError(f"{given} is none of the {count} observations {ends}")
            return chosen

        return read_one if self.shape == () else read

    def _numbers(self, given: Any) -> Array:
        """Checks the size: NumPy would broadcast a single number."""
        found = np.asarray(given)
        if found.size != prod(self.shape):
            where = ".".join(map(str, self.path)) or "an observation"
            raise ValueError(f"{where} has shape {found.shape} instead of {self.shape}")
        return found.reshape(-1)


@dataclass(frozen=True)
class Parts:
    """All leaves, one after the other; or one key of a Dict."""

    leaves: tuple[Leaf, ...] = ()
    key: str = ""
    indexed: bool = False  # whole numbers; older runs have one-hot ones

    @property
    def size(self) -> int:
        return len(self.counts) if self.indexed else sum(leaf.size for leaf in self.leaves)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many values each whole number has."""
        return tuple(n for leaf in self.leaves for n in leaf.counts) if self.indexed else ()

    def reader(self) -> Reader:
        """A function that makes an array of one observation, or a single whole number."""
        if self.key and not self.leaves:
            return lambda given: given[self.key]
        parts, end = list[tuple[Leaf, slice, Reader]](), 0
        for leaf in self.leaves:
            size = len(leaf.counts) if self.indexed else leaf.size
            parts.append((leaf, slice(end, end := end + size), self._reader_of(leaf)))
        if self.indexed and not self.key and [leaf.path for leaf in self.leaves] == [()]:
            return parts[0][2]

        def read(given: Any) -> Array:
            row = np.zeros(end, np.int32 if self.indexed else np.float32)
            given = given[self.key] if self.key and isinstance(given, dict) else given
            for leaf, place, one in parts:
                row[place] = one(leaf.of(given))
            return row

        return read

    def _reader_of(self, leaf: Leaf) -> Reader:
        return leaf.index_reader() if self.indexed else leaf.reader()

    def arrays(self, given: Any) -> Any:
        """One observation, or several (a list, or a Dict of arrays), as an array."""
        read = self.reader()
        if isinstance(given, list) and given and isinstance(given[0], dict | tuple):
            return np.stack([read(one) for one in given])
        if self.key:
            given = given[self.key] if isinstance(given, dict) else given
            if not self.leaves:
                return given
        if not isinstance(given, dict | tuple) and any(leaf.path for leaf in self.leaves):
            return given
        seen = [np.asarray(leaf.of(given)) for leaf in self.leaves]
        pairs = list(zip(self.leaves, seen, strict=True))
        if all(part.shape == leaf.shape for leaf, part in pairs):
            return np.reshape(read(given), -1) if self.indexed else read(given)
        if all(part.ndim and part.shape[1:] == leaf.shape for leaf, part in pairs):
            rows = [np.stack([*map(self._reader_of(leaf), part)]) for leaf, part in pairs]
            return np.concatenate([row.reshape(len(row), -1) for row in rows], axis=1)
        return given

    def state(self) -> State:
        leaves = [
            {"path": [*leaf.path], "shape": [*leaf.shape], "counts": [*leaf.counts]}
            | {"starts": [*leaf.starts]}
            for leaf in self.leaves
        ]
        return {"key": self.key, "leaves": leaves, "indexed": self.indexed}


def parts_from(state: State) -> Parts:
    """The inverse of `Parts.state`."""
    leaves = []
    for leaf in state["leaves"]:
        path = tuple(step if isinstance(step, int) else str(step) for step in leaf["path"])
        numbers = (tuple(map(int, leaf[name])) for name in ("shape", "counts", "starts"))
        leaves.append(Leaf(path, *numbers))
    return Parts(tuple(leaves), str(state["key"]), bool(state.get("indexed", False)))


def parts_of(id: str, space: Any, key: str = "") -> tuple[Parts | None, Any]:
    """The parts of a space, if it has any, and the space of the result."""
    space = _chosen(id, space, key) if key else space
    if isinstance(space, spaces.Box) and space.shape:
        return Parts(key=key) if key else None, space
    try:
        leaves = tuple(_leaves(space, ()))
    except Unreadable as error:
        if key:
            return Parts(key=key), space  # `observations` refuses it
        raise _refused(id, space, error) from None
    if leaves and all(leaf.counts for leaf in leaves):
        found = Parts(leaves, key, indexed=True)
        return found, spaces.MultiDiscrete(list(found.counts))
    if key:
        return Parts(key=key), space
    return Parts(leaves), spaces.Box(-np.inf, np.inf, (Parts(leaves).size,))


def note(space: Any, parts: Parts | None) -> str:
    """One line for the user: how the observations are converted."""
    if parts is None or isinstance(space, spaces.Discrete):
        return ""
    keys = list(space.spaces) if isinstance(space, spaces.Dict) else []
    if parts.key:
        others = ", ".join(str(key) for key in keys if key != parts.key)
        return f"observations: {parts.key!r} of the Dict" + (f"; {others} unseen" if others else "")
    told = f"observations: {type(space).__name__} flattened into {parts.size:,} "
    told += "whole numbers" if parts.indexed else "numbers"
    one_hot = any(leaf.counts for leaf in parts.leaves)
    told += ", one-hot for a network" if parts.indexed else ", Discrete ones one-hot" * one_hot
    return told + (f", in the order {', '.join(keys)} (--env.obs-key takes one)" if keys else "")


def _leaves(space: Any, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise Unreadable(f"{key!r} is a key of a Dict, and not a text")
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for place, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, place))
    elif isinstance(space, spaces.Discrete):
        yield Leaf(path, (), (int(space.n),), (int(space.start),))
    elif isinstance(space, spaces.MultiDiscrete):
        counts, starts = (tuple(map(int, a.reshape(-1))) for a in (space.nvec, space.start))
        yield Leaf(path, tuple(space.shape), counts, starts)
    elif isinstance(space, spaces.MultiBinary | spaces.Box) and (path or len(space.shape) < 4):
        yield Leaf(path, tuple(space.shape))
    else:
        raise Unreadable(f"{path[-1]!r} is {type(space).__name__}" if path else str(space))


def _chosen(id: str, space: Any, key: str) -> Any:
    if not isinstance(space, spaces.Dict):
        raise BadRequest(
            f"--env.obs-key {key}: the observations of {id} are {space}, not a Dict.",
            "Leave it out.",
        )
    if key not in space.spaces:
        raise BadRequest(
            f"--env.obs-key {key}: {id} has no such observation.",
            f"Choose one of {', '.join(map(str, space.spaces))}.",
        )
    return space.spaces[key]


def _refused(id: str, space: Any, error: Unreadable) -> BadRequest:
    if isinstance(space, spaces.Dict):
        plain = (spaces.Box, spaces.Discrete)
        parts = space.spaces.items()
        keys = [key for key, part in parts if isinstance(part, plain) and isinstance(key, str)]
        return BadRequest(
            f"{id} has observations that cannot be flattened: {error}.",
            f"Choose one with --env.obs-key: {', '.join(keys)}."
            if keys
            else "Wrap the environment, so that all keys are texts and all parts numbers.",
        )
    return BadRequest(
        f"{id} has observations manyhands cannot read: {error}.",
        "Use a vector, an image, Discrete, or a Dict or Tuple of these; wrap the "
        "environment, for example in gymnasium.wrappers.FlattenObservation.",
    )
