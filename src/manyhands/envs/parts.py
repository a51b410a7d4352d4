"""Observations of several parts (Dict, Tuple, MultiDiscrete, …): flattened, or one part chosen.

They become what `observations` reads: a vector, in the order of
`gymnasium.wrappers.FlattenObservation` with Discrete numbers one-hot, or one key of a Dict as it
is. `Parts` is plain data, so that a checkpoint holds it beside the `Reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.types import Array, BadRequest, State

Reader = Callable[[Any], Any]


class Unreadable(Exception):
    """A space of which no numbers can be made."""


@dataclass(frozen=True)
class Leaf:
    """A part that has no parts: numbers, or one-hot what counts from `start` on."""

    path: tuple[str | int, ...]  # of keys and places
    shape: tuple[int, ...]
    counts: tuple[int, ...] = ()  # of a Discrete or MultiDiscrete space
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
        counts, starts = np.array(self.counts), np.array(self.starts)
        firsts = np.cumsum(counts) - counts

        def read(given: Any) -> Array:
            chosen = self._numbers(given) - starts
            if not ((chosen >= 0) & (chosen < counts)).all():
                raise ValueError(f"{given} is not within its Discrete space")
            row = np.zeros(self.size, np.float32)
            row[firsts + chosen] = 1.0
            return row

        return read

    def _numbers(self, given: Any) -> Array:
        """NumPy would stretch a single number to fit."""
        found = np.asarray(given)
        if found.size != prod(self.shape):
            where = ".".join(map(str, self.path)) or "an observation"
            raise ValueError(f"{where} has shape {found.shape} instead of {self.shape}")
        return found.reshape(-1)


@dataclass(frozen=True)
class Parts:
    """All leaves, one after the other; or the key of a Dict."""

    leaves: tuple[Leaf, ...] = ()
    key: str = ""

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    def reader(self) -> Reader:
        """One observation as an array."""
        if self.key:
            return lambda given: given[self.key]
        parts, end = list[tuple[Leaf, slice, Reader]](), 0
        for leaf in self.leaves:
            end += leaf.size
            parts.append((leaf, slice(end - leaf.size, end), leaf.reader()))

        def read(given: Any) -> Array:
            row = np.zeros(end, np.float32)
            for leaf, place, one in parts:
                row[place] = one(leaf.of(given))
            return row

        return read

    def arrays(self, given: Any) -> Any:
        """Of one observation, of several (a list, or their arrays in one Dict); else as it is."""
        read = self.reader()
        if isinstance(given, list) and given and isinstance(given[0], dict | tuple):
            return np.stack([read(one) for one in given])
        if self.key:
            return given[self.key] if isinstance(given, dict) else given
        if not isinstance(given, dict | tuple) and any(leaf.path for leaf in self.leaves):
            return given
        seen = [np.asarray(leaf.of(given)) for leaf in self.leaves]
        pairs = list(zip(self.leaves, seen, strict=True))
        if all(part.shape == leaf.shape for leaf, part in pairs):
            return read(given)
        if all(part.ndim and part.shape[1:] == leaf.shape for leaf, part in pairs):
            rows = [np.stack([*map(leaf.reader(), part)]) for leaf, part in pairs]
            return np.concatenate(rows, axis=1)
        return given

    def state(self) -> State:
        leaves = [
            {"path": [*leaf.path], "shape": [*leaf.shape], "counts": [*leaf.counts]}
            | {"starts": [*leaf.starts]}
            for leaf in self.leaves
        ]
        return {"key": self.key, "leaves": leaves}


def parts_from(state: State) -> Parts:
    """The inverse of `Parts.state`."""
    leaves = []
    for leaf in state["leaves"]:
        path = tuple(step if isinstance(step, int) else str(step) for step in leaf["path"])
        numbers = (tuple(map(int, leaf[name])) for name in ("shape", "counts", "starts"))
        leaves.append(Leaf(path, *numbers))
    return Parts(tuple(leaves), str(state["key"]))


def parts_of(id: str, space: Any, key: str = "") -> tuple[Parts | None, Any]:
    """The parts of a space that has some, and the space of what they become."""
    if key:
        return Parts(key=key), _chosen(id, space, key)
    if isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.shape):
        return None, space
    try:
        leaves = tuple(_leaves(space, ()))
    except Unreadable as error:
        raise _refused(id, space, error) from None
    found = Parts(leaves)
    return found, spaces.Box(-np.inf, np.inf, (found.size,))


def note(space: Any, parts: Parts | None) -> str:
    """One line for the user: how such observations are read."""
    if parts is None:
        return ""
    keys = list(space.spaces) if isinstance(space, spaces.Dict) else []
    if parts.key:
        others = ", ".join(key for key in keys if key != parts.key)
        return f"observations: {parts.key!r} of the Dict" + (f"; {others} unseen" if others else "")
    told = f"observations: {type(space).__name__} flattened into {parts.size:,} numbers"
    told += ", Discrete ones one-hot" if any(leaf.counts for leaf in parts.leaves) else ""
    return told + (f", in the order {', '.join(keys)} (--env.obs-key takes one)" if keys else "")


def _leaves(space: Any, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, str(key)))
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
            f"--env.obs-key {key}: the observations of {id} are no Dict but {space}.",
            "Leave it out.",
        )
    if key not in space.spaces:
        raise BadRequest(
            f"--env.obs-key {key}: {id} has no such observation.",
            f"Choose one of {', '.join(space.spaces)}.",
        )
    return space.spaces[key]


def _refused(id: str, space: Any, error: Unreadable) -> BadRequest:
    if isinstance(space, spaces.Dict):
        plain = (spaces.Box, spaces.Discrete)
        keys = [str(key) for key, part in space.spaces.items() if isinstance(part, plain)]
        return BadRequest(
            f"{id} has observations that cannot be flattened: {error}.",
            f"Choose one with --env.obs-key: {', '.join(keys)}." if keys else "Wrap it.",
        )
    return BadRequest(
        f"{id} has observations manyhands cannot read: {error}.",
        "They may be a vector, an image, Discrete, or a Dict or Tuple of such; wrap the "
        "environment, for example in gymnasium.wrappers.FlattenObservation.",
    )
