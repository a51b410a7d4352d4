"""The loops of prioritized replay, compiled by numba where it is installed (the extra `fast`).

They add the same numbers in the same order as `sumtree.py` and `prioritized.py`, which explain them
and run without numba. Both draw the same rows to the last bit. The first use compiles for some
seconds; numba caches the result beside this file or in the user's cache.
"""

from __future__ import annotations

import numba
import numpy as np

from manyhands.memory.prioritized import Prioritized
from manyhands.memory.storage.lanes import CLOSING
from manyhands.memory.storage.sumtree import BELOW_1, WIDTH, SumTree
from manyhands.types import Array

jit = numba.njit(cache=True)


class CompiledTree(SumTree):
    def _sum(self, ids: Array) -> None:
        _sum(self.leaves, self._twigs, self._branches, ids)

    def _find(self, mass: Array, ends: Array) -> Array:
        found = np.empty(len(mass), np.int64)
        _find(self.leaves, self._twigs, self._branches, ends, mass, found)
        return found


class Compiled(Prioritized):
    tree_kind = CompiledTree

    def _entering(self, fresh: Array, most: int, n: int) -> tuple[Array, Array]:
        lanes = self.lanes
        behind = lanes.behind(most + n)
        size = (len(fresh), len(behind))
        ids, entering = np.empty(size, np.int64), np.empty(size)
        record = lanes.flat["action"], lanes.flat["discount"], lanes.flat["first"]
        shape = lanes.rows, lanes.margin, lanes.spec.stack
        counts = lanes.written, fresh, behind
        _enter(self.tree.leaves, self._of_fresh(), n, record, shape, counts, ids, entering)
        return ids.reshape(-1), entering.reshape(-1)


@jit
def _enter(
    leaves: Array,
    of_fresh: float,
    n: int,
    record: tuple[Array, Array, Array],
    shape: tuple[int, int, int],
    counts: tuple[Array, Array, Array],
    ids: Array,
    entering: Array,
) -> None:
    rows, margin, stack = shape
    written, fresh, behinds = counts
    for lane in range(ids.shape[0]):
        overwrites = written[lane] > rows - margin
        reach = rows - margin - stack + 1 if overwrites else written[lane]
        for column in range(ids.shape[1]):
            behind = behinds[column]
            at = lane * rows + (written[lane] - behind) % rows
            before = leaves[at]
            if behind < 1:
                value = 0.0 if overwrites else before
            elif behind > reach or not _known(record, at, behind, rows, n):
                value = 0.0
            else:
                value = before if behind > fresh[lane] and before > 0 else of_fresh
            ids[lane, column], entering[lane, column] = at, value


@jit
def _known(record: tuple[Array, Array, Array], at: int, behind: int, rows: int, n: int) -> bool:
    """`Lanes._known` for one row: all rows of its n-step sum are written."""
    action, discount, first = record
    for step in range(n):
        onward = at + 1 if (at + 1) % rows else at + 1 - rows
        if action[at] == CLOSING or (behind > 1 and first[onward]):
            return step > 0
        if behind == 1:
            return False
        if discount[at] == 0:
            return True
        at, behind = onward, behind - 1
    return True


@jit
def _sum(leaves: Array, twigs: Array, branches: Array, ids: Array) -> None:
    done = -1
    for i in range(len(ids)):
        twig = ids[i] // WIDTH
        if twig != done:
            twigs[twig] = _sum_of(leaves, twig)
            done = twig
    done = -1
    for i in range(len(ids)):
        branch = ids[i] // WIDTH // WIDTH
        if branch != done:
            branches[branch] = _sum_of(twigs, branch)
            done = branch


@jit
def _sum_of(children: Array, node: int) -> float:
    """Adds in the order NumPy does: eight sums of every eighth number, then pairs of them."""
    at = node * WIDTH
    s0, s1, s2, s3 = children[at], children[at + 1], children[at + 2], children[at + 3]
    s4, s5, s6, s7 = children[at + 4], children[at + 5], children[at + 6], children[at + 7]
    for i in range(at + 8, at + WIDTH, 8):
        s0 += children[i]
        s1 += children[i + 1]
        s2 += children[i + 2]
        s3 += children[i + 3]
        s4 += children[i + 4]
        s5 += children[i + 5]
        s6 += children[i + 6]
        s7 += children[i + 7]
    return float(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)))


@jit
def _find(
    leaves: Array, twigs: Array, branches: Array, ends: Array, mass: Array, found: Array
) -> None:
    for i in range(len(mass)):
        branch = np.searchsorted(ends, min(mass[i], ends[-1] * BELOW_1), side="right")
        left = mass[i] - (ends[branch] - branches[branch])
        twig, left = _child(twigs, branch, left)
        found[i], left = _child(leaves, twig, left)


@jit
def _child(children: Array, node: int, mass: float) -> tuple[int, float]:
    begin = node * WIDTH
    total = 0.0
    for i in range(begin, begin + WIDTH):
        total += children[i]
    mass = min(max(mass, 0.0), total * BELOW_1)
    at, end = begin, children[begin]
    while end <= mass:
        at += 1
        end += children[at]
    return at, mass - (end - children[at])
