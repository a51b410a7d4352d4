"""A sum tree: draws many rows at once, in proportion to their priorities.

It has three levels of wide nodes instead of twenty levels of two children. Starting a NumPy call
takes longer than its arithmetic, so a few calls on large arrays are faster. A node is always the
sum of its children, summed again when one changes. So sums do not drift, and a tree rebuilt from
its leaves is equal to the last bit.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from manyhands.types import Array

WIDTH = 32  # children of a node; the root has as many as are left
MANY = 4 * WIDTH  # with more ids it is faster to find the distinct nodes first
BELOW_1 = math.nextafter(1.0, 0.0)
LEAST, MOST = 1e-12, 1e12  # of a leaf; a NaN or infinity would spoil every sum above it


def bytes_needed(size: int) -> int:
    """Bytes of a tree of `size` rows: 8 a row, and a thirty-second more for the sums."""
    branches = leaves_of(size) // WIDTH**2
    return 8 * branches * (WIDTH**2 + WIDTH + 1)


def leaves_of(size: int) -> int:
    """`size` rounded up to whole branches."""
    return -(-size // WIDTH**2) * WIDTH**2


class SumTree:
    def __init__(self, size: int, leaves: Array | None = None) -> None:
        """`leaves`: existing priorities, used in place."""
        branches = leaves_of(size) // WIDTH**2
        self.size = size
        # 0: never drawn. Read it, write by `set`.
        self.leaves = np.zeros(branches * WIDTH**2) if leaves is None else leaves
        self._twigs = np.zeros(branches * WIDTH)  # sums of leaves
        self._branches = np.zeros(branches)  # sums of twigs
        self._leaves_of = self.leaves.reshape(-1, WIDTH)
        self._twigs_of = self._twigs.reshape(-1, WIDTH)
        self._changed: list[Array] = []  # leaves whose nodes are not summed yet
        if leaves is not None:
            self.sum_up()

    @property
    def total(self) -> float:
        self._settle()
        return float(self._branches.sum())

    def set(self, ids: Array, priorities: Array | float) -> None:
        """Clips priorities to finite, positive leaves. Of equal ids the last counts."""
        # Of a NaN and a number fmax takes the number.
        self.write(ids, np.fmin(np.fmax(priorities, LEAST), MOST))

    def write(self, ids: Array, priorities: Array | float) -> None:
        """As `set`, for priorities known to be within bounds, or 0: never drawn."""
        self.leaves[ids] = priorities
        self._changed.append(ids)

    def sum_up(self) -> None:
        """Sums the whole tree from its leaves."""
        self._twigs[:] = self._leaves_of.sum(1)
        self._branches[:] = self._twigs_of.sum(1)
        self._changed.clear()

    def _settle(self) -> None:
        """Sums the nodes above changed leaves, once for all changes since the last draw."""
        if not self._changed:
            return
        ids = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed.clear()
        self._sum(ids)

    def _sum(self, ids: Array) -> None:
        twigs = ids // WIDTH
        if len(ids) > MANY:  # many rows have few nodes
            twigs = _distinct(twigs, len(self._twigs))
        self._twigs[twigs] = np.add.reduce(self._leaves_of.take(twigs, axis=0), axis=1)
        branches = twigs // WIDTH
        if len(branches) > MANY:
            branches = _distinct(branches, len(self._branches))
        self._branches[branches] = np.add.reduce(self._twigs_of.take(branches, axis=0), axis=1)

    def draw(self, size: int, rng: np.random.Generator, strata: int = 0) -> Array:
        """Draws rows from `strata` equal parts of the mass in turn (0: one part per row).

        Returns no rows if all priorities are 0.
        """
        self._settle()
        ends = self._branches.cumsum()
        if not ends[-1]:
            return np.empty(0, np.int64)
        strata = strata or size
        mass = rng.random(size)
        mass += _strata(size, strata)
        mass *= ends[-1] / strata
        return self._find(mass, ends)

    def find(self, mass: Array) -> Array:
        """The rows in which these prefix sums lie. Never a row of priority 0, unless all are."""
        self._settle()
        return self._find(np.maximum(mass, 0.0), self._branches.cumsum())

    def _find(self, mass: Array, ends: Array) -> Array:
        branches = ends.searchsorted(np.minimum(mass, ends[-1] * BELOW_1), side="right")
        mass = mass - (ends.take(branches) - self._branches.take(branches))
        twigs, mass = _child(self._twigs_of, branches, mass)
        leaves, _ = _child(self._leaves_of, twigs, mass)
        return leaves


@functools.lru_cache(maxsize=8)
def _strata(size: int, strata: int) -> Array:
    return np.arange(size, dtype=np.float64) % strata


def _child(children: Array, nodes: Array, mass: Array) -> tuple[Array, Array]:
    """For each node the child in which the mass lies, and the mass left within that child.

    Rounding may carry a mass over its node's edge. It is clipped, because a child without mass
    must never be found.
    """
    within = children.take(nodes, axis=0)
    ends = within.cumsum(axis=1)
    mass = np.minimum(np.maximum(mass, 0.0), ends[:, -1] * BELOW_1)
    found = (ends > mass[:, None]).argmax(axis=1)  # the first such child, which has mass
    at = np.arange(0, within.size, WIDTH) + found
    return nodes * WIDTH + found, mass - (ends.take(at) - within.take(at))


def _distinct(numbers: Array, end: int) -> Array:
    """Sorted and unique. Needs no sorting, because the numbers are small."""
    there = np.zeros(end, bool)
    there[numbers] = True
    return np.flatnonzero(there)
