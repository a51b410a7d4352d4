"""Imagined steps that learners share: bounded, and never half of one and half of another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

import cloudpickle
import numpy as np
import pytest

from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.memory.storage import imagined
from manyhands.memory.storage.imagined import ImaginedMemory
from manyhands.types import Array, EnvSpec, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
SPEC = EnvSpec("toy", 1, (8,), "float32", 1, 5)
AT_ONCE = 10


def steps(numbers: Array) -> dict[str, Array]:
    """Each of one number, so that halves of two do not fit."""
    wide = np.repeat(numbers[:, None], 8, 1).astype(np.float32)
    return {
        "observation": wide, "action": numbers.astype(np.int32) % 5,
        "reward": numbers.astype(np.float32), "discount": np.ones(len(numbers), np.float32),
        "next_observation": wide, "origin": numbers.astype(np.int64),
    }  # fmt: skip


def drawn_from(memory: ImaginedMemory, count: int = 4000) -> Array:
    """The origins of whole steps. None are found if a writer overwrote all meanwhile."""
    drawn = memory.draw(np.random.default_rng(0).random(count, np.float32))
    if drawn is None:
        return np.empty(0, np.int64)
    expected = steps(drawn["origin"])
    for name, array in drawn.items():
        np.testing.assert_array_equal(array, expected[name])
    return drawn["origin"]


def test_the_newest_steps_replace_the_oldest() -> None:
    memory = ImaginedMemory.alone(SPEC, 50, AT_ONCE)
    assert memory.draw(np.zeros(3)) is None
    memory.extend(steps(np.arange(3)))
    assert set(drawn_from(memory)) == {0, 1, 2}
    for first in range(3, 203, AT_ONCE):
        memory.extend(steps(np.arange(first, first + AT_ONCE)))
    assert set(drawn_from(memory)) == set(range(163, 203))  # those that are not written next


def test_every_step_of_every_learner_is_equally_likely() -> None:
    with closing(InProcess()) as backend:
        stream = imagined.share(SPEC, 200, learners=2, at_once=AT_ONCE, backend=backend)
        one, other = (ImaginedMemory(stream, at_once=AT_ONCE, writer=n) for n in range(2))
        one.extend(steps(np.arange(5)))
        for first in range(100, 130, AT_ONCE):
            other.extend(steps(np.arange(first, first + AT_ONCE)))
        for each in (one, other):
            found = drawn_from(each)
            assert np.mean(found < 5) == pytest.approx(5 / 35, abs=0.02)
            assert set(found) == {*range(5), *range(100, 130)}


def test_a_state_brings_the_own_ring_back() -> None:
    one, other = (ImaginedMemory.alone(SPEC, 50, AT_ONCE) for _ in range(2))
    for first in range(0, 70, AT_ONCE):
        one.extend(steps(np.arange(first, first + AT_ONCE)))
    other.restore(one.state())
    for each in (one, other):
        each.extend(steps(np.arange(70, 75)))
    assert drawn_from(one).tolist() == drawn_from(other).tolist()
    small = ImaginedMemory.alone(SPEC, 40, AT_ONCE)
    small.restore(one.state())
    assert small.draw(np.zeros(1)) is None  # rings of another size: it begins without


def test_no_step_is_torn_while_another_process_writes() -> None:
    with closing(Processes()) as backend:
        stream = imagined.share(SPEC, 200, learners=2, at_once=AT_ONCE, backend=backend)
        over = backend.allocate((1,), np.dtype(np.int64))

        def write(_: Rank) -> Iterator[None]:
            memory, first = ImaginedMemory(stream, at_once=AT_ONCE), 0
            while not over[0]:
                memory.extend(steps(np.arange(first, first + AT_ONCE)))
                first = (first + AT_ONCE) % 1_000_000
                yield

        def draw(_: Rank) -> Iterator[None]:
            memory, last = ImaginedMemory(stream, at_once=AT_ONCE, writer=1), set[int]()
            while len(last) < 300:
                last |= {*drawn_from(memory, 8).tolist()}
                yield
            over[0] = 1

        assert list(filter(None, backend.run([Job(write), Job(draw)]))) == []
        assert over[0] == 1
