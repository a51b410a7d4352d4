"""Lanes are read by the compiled library as NumPy reads them, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.maths import compiled
from manyhands.memory.storage import reading
from manyhands.memory.storage.lanes import CLOSING, Lanes
from manyhands.types import EnvSpec

pytestmark = pytest.mark.skipif(compiled.library() is None, reason=compiled.found().why)


def random_lanes(lanes: int, rows: int, margin: int, seed: int) -> Lanes:
    """Lanes with any content; some are full, some are empty."""
    rng = np.random.default_rng(seed)
    made = Lanes(EnvSpec("x", lanes, (3,), "float32", 1, 4), rows, columns={}, margin=margin)
    shape = made.arrays["action"].shape
    made.arrays["frame"][:] = rng.normal(size=made.arrays["frame"].shape)
    made.arrays["action"][:] = rng.choice([CLOSING, 0, 1, 2, 3], shape)
    made.arrays["reward"][:] = rng.normal(size=shape)
    made.arrays["discount"][:] = rng.choice([0, 0.5, 1], shape, p=[0.1, 0.1, 0.8])
    made.arrays["first"][:] = rng.random(shape) < 0.1
    made.written[:] = rng.integers(0, 3 * rows, lanes)
    return made


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 4), rows=st.integers(8, 30), margin=st.integers(0, 2),
    n=st.integers(1, 5), all_known=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_both_give_the_same_bits(
    lanes: int, rows: int, margin: int, n: int, all_known: bool, seed: int
) -> None:
    some = random_lanes(lanes, rows, margin, seed)
    proposed = [
        propose(40, np.random.default_rng(seed))
        for propose in (some.reader.propose, lambda *given: reading._propose(some, *given))
    ]
    np.testing.assert_array_equal(proposed[0], proposed[1])
    ids = np.arange(some.capacity)
    ours = some.reader.n_step(ids, n, 0.99, all_known=all_known)
    theirs = reading._n_step(some, ids, n, 0.99, all_known=all_known)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    frames = np.zeros((len(proposed[0]), 3), np.float32)
    some.observations(proposed[0], frames)
    np.testing.assert_array_equal(frames, some.flat["frame"][proposed[0]])
