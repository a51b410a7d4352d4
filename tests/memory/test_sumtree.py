from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.memory.storage import sumtree
from manyhands.memory.storage.sumtree import LEAST, MOST

SumTree: Any = sumtree.SumTree


@pytest.fixture(params=["numpy", "numba"], autouse=True, scope="module")
def _kind(request: pytest.FixtureRequest) -> None:
    """Every test here is of both trees."""
    if request.param == "numba":
        pytest.importorskip("numba")
        from manyhands.memory.storage.compiled import CompiledTree
    global SumTree
    SumTree = CompiledTree if request.param == "numba" else sumtree.SumTree


def slowly_found(leaves: list[float], mass: float) -> int:
    for i, priority in enumerate(leaves):
        mass -= priority
        if mass < 0:
            return i
    raise AssertionError


@settings(deadline=None, max_examples=30)
@given(
    size=st.sampled_from([1, 5, 33, 1024, 1025, 2100]),
    data=st.data(),
    seed=st.integers(0, 1000),
)
def test_against_a_list(size: int, data: st.DataObject, seed: int) -> None:
    tree, leaves = SumTree(size), [0.0] * size
    rng = np.random.default_rng(seed)
    for _ in range(data.draw(st.integers(1, 6))):
        ids = rng.integers(size, size=data.draw(st.integers(0, 2 * size)))
        if data.draw(st.booleans()):
            values = rng.integers(1, 50, size=len(ids)) / 4  # exact sums: no rounding to argue over
            tree.set(ids, values)
            for i, value in zip(ids, values, strict=True):
                leaves[i] = value
        else:
            tree.write(ids, 0)
            for i in ids:
                leaves[i] = 0.0
        assert tree.leaves[:size].tolist() == leaves
        assert tree.total == sum(leaves)
        if tree.total:
            mass = rng.random(20) * tree.total
            assert tree.find(mass).tolist() == [slowly_found(leaves, m) for m in mass]
            # Where a row ends the next begins.
            edges = np.concatenate([[0.0], np.cumsum(leaves)[np.flatnonzero(leaves)][:-1][:20]])
            assert tree.find(edges).tolist() == [slowly_found(leaves, m) for m in edges]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), spread=st.integers(0, 12), size=st.integers(1, 3000))
def test_rows_without_priority_are_never_found_however_it_rounds(
    seed: int, spread: int, size: int
) -> None:
    rng, tree = np.random.default_rng(seed), SumTree(size)
    ids = np.flatnonzero(rng.random(size) < 0.3)
    tree.set(ids, 10.0 ** rng.uniform(-spread, spread, len(ids)))
    if not len(ids):
        return
    total = tree.total
    ends = np.array([0.0, -1e-9, total, total * (1 + 1e-12), np.nextafter(total, 0)])
    found = tree.find(np.concatenate([ends, rng.random(200) * total]))
    assert np.isin(found, ids).all()
    assert np.isin(tree.draw(64, rng), ids).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 5000))
def test_a_tree_rebuilt_from_its_leaves_is_the_same_bit_for_bit(seed: int, size: int) -> None:
    rng, tree = np.random.default_rng(seed), SumTree(size)
    for count in (1, 7, 32, 200, size):
        ids = rng.integers(size, size=count)
        tree.set(ids, rng.random(count) ** 3)
        tree.write(rng.integers(size, size=3), 0)
    again = SumTree(size, tree.leaves.copy())
    assert tree.total == again.total
    for name in ("leaves", "_twigs", "_branches"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(again, name))
    if tree.total:
        mass = rng.random(64) * tree.total
        assert tree.find(mass).tolist() == again.find(mass).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 1e-300])
def test_no_priority_poisons_the_sums(bad: float) -> None:
    tree = SumTree(100)
    tree.set(np.arange(100), 1.0)
    tree.set(np.array([3, 50]), np.array([bad, 2.0]))
    assert LEAST <= tree.leaves[3] <= MOST
    assert math.isfinite(tree.total)
    tree.set(np.array([3]), 1.0)
    assert tree.total == 101


def test_draws_are_stratified_and_in_proportion() -> None:
    tree, rng = SumTree(3000), np.random.default_rng(0)
    ids, weights = np.array([5, 40, 1500, 2999]), np.array([1.0, 2.0, 3.0, 4.0])
    tree.set(ids, weights)
    drawn = np.concatenate([tree.draw(10, rng) for _ in range(300)])
    counts = [int((drawn == i).sum()) for i in ids]
    assert counts == [300, 600, 900, 1200]  # ten strata of one: no chance is left
    drawn = np.concatenate([tree.draw(1, rng) for _ in range(5000)])
    shares = np.array([(drawn == i).mean() for i in ids])
    np.testing.assert_allclose(shares, weights / 10, atol=0.03)
