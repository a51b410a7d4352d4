"""A sum tree: rows drawn in proportion to their priorities, many at once.

Three levels of wide nodes, not twenty of two children: NumPy's price is the call, not the number,
so few calls on some thousand numbers beat many on a few. A node is always the sum of its children,
computed anew when one of them changes: sums do not drift, and a tree made again from its leaves is
the same to the last bit.
"""

from __future__ import annotations

import math

import numpy as np

from manyhands.types import Array

WIDTH = 32  # children of a node; the root has as many as are left
LEAST, MOST = 1e-12, 1e12  # a leaf; a NaN or infinity would poison every sum above it for ever


class SumTree:
    def __init__(self, size: int) -> None:
        branches = -(-size // WIDTH**2)
        self.size = size
        self.leaves = np.zeros(branches * WIDTH**2)  # 0: never drawn. Read it, write by `set`
        self._twigs = np.zeros(branches * WIDTH)  # sums of leaves
        self._branches = np.zeros(branches)  # sums of twigs
        self._leaves_of = self.leaves.reshape(-1, WIDTH)
        self._twigs_of = self._twigs.reshape(-1, WIDTH)

    @property
    def total(self) -> float:
        return float(self._branches.sum())

    def set(self, ids: Array, priorities: Array | float) -> None:
        """Whatever the priorities, the leaves become finite and positive; of equal ids the last."""
        # Of a NaN and a number fmax takes the number.
        self.leaves[ids] = np.fmin(np.fmax(priorities, LEAST), MOST)
        self._sum(ids)

    def clear(self, ids: Array) -> None:
        self.leaves[ids] = 0
        self._sum(ids)

    def restore(self, leaves: Array) -> None:
        self.leaves[: self.size] = leaves
        self._twigs[:] = self._leaves_of.sum(1)
        self._branches[:] = self._twigs_of.sum(1)

    def _sum(self, ids: Array) -> None:
        twigs = ids // WIDTH
        if len(ids) > WIDTH:  # a long run of rows has few nodes
            twigs = _distinct(twigs, len(self._twigs))
        self._twigs[twigs] = np.add.reduce(self._leaves_of.take(twigs, axis=0), axis=1)
        branches = twigs // WIDTH
        self._branches[branches] = np.add.reduce(self._twigs_of.take(branches, axis=0), axis=1)

    def draw(self, size: int, rng: np.random.Generator, strata: int = 0) -> Array:
        """Rows from so many equal strata of the whole mass in turn (0: as many as rows are drawn).

        None if there is no mass.
        """
        ends = self._branches.cumsum()
        if not ends[-1]:
            return np.empty(0, np.int64)
        strata = strata or size
        stratum = np.arange(size) % strata
        return self._find((stratum + rng.random(size)) * (ends[-1] / strata), ends)

    def find(self, mass: Array) -> Array:
        """The rows in which these prefix sums lie. Never one of priority 0, if any is not."""
        return self._find(mass, self._branches.cumsum())

    def _find(self, mass: Array, ends: Array) -> Array:
        branches, mass = _search(self._branches, ends, mass)
        twigs, mass = _child(self._twigs_of, branches, mass)
        leaves, _ = _child(self._leaves_of, twigs, mass)
        return leaves


def _child(children: Array, nodes: Array, mass: Array) -> tuple[Array, Array]:
    """Of each node the child in which its mass lies, and the mass left within that child.

    The children of all nodes are laid end to end, so that one search finds all. Where rounding
    carries a mass over its node's edge it finds the neighbour: a child that has mass all the same.
    """
    within = children.take(nodes, axis=0)
    flat = within.reshape(-1)
    ends = flat.cumsum()
    before = ends[WIDTH - 1 :: WIDTH] - np.add.reduce(within, axis=1)
    found, left = _search(flat, ends, before + mass)
    which = found // WIDTH
    return (nodes.take(which) - which) * WIDTH + found, left


def _search(masses: Array, ends: Array, wanted: Array) -> tuple[Array, Array]:
    """Where the wanted prefix sums lie among masses that end there, and how far within."""
    wanted = np.minimum(np.maximum(wanted, 0.0), math.nextafter(float(ends[-1]), 0.0))
    found = ends.searchsorted(wanted, side="right")
    return found, wanted - (ends.take(found) - masses.take(found))


def _distinct(numbers: Array, end: int) -> Array:
    """Sorted, each once: without sorting, as they are small."""
    there = np.zeros(end, bool)
    there[numbers] = True
    return np.flatnonzero(there)
