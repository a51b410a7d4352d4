from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing

import cloudpickle
import numpy as np
import pytest

from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.roles import kept_state
from manyhands.types import Job, Rank, State

cloudpickle.register_pickle_by_value(sys.modules[__name__])
STATE: State = {
    "copies": -1,
    "rate": 0.5,
    "target": {"a.weight": np.ones((2, 3), np.float32), "b": {}},
}


def test_what_lies_there_is_what_was_put_there() -> None:
    made = kept_state.make(InProcess(), STATE)
    assert made is not None
    assert made.get()["copies"] == -1
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    made.put({"copies": 7, "rate": 0.25, "target": {"a.weight": array, "b": {}}})
    found = made.get()
    array[:] = 0
    assert (found["copies"], found["rate"], found["target"]["b"]) == (7, 0.25, {})
    assert isinstance(found["copies"], int)
    assert found["target"]["a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_nothing_and_what_is_no_number_is_not_kept() -> None:
    assert kept_state.make(InProcess(), {}) is None
    assert kept_state.make(InProcess(), {"name": "mine", "copies": 1}) is None
    assert kept_state.make(InProcess(), {"ragged": [[1], [1, 2]]}) is None


@pytest.mark.parametrize(
    "other",
    [
        {"copies": 0.5, "rate": 0.5, "target": STATE["target"]},
        {"copies": 1, "rate": 0.5, "target": {"a.weight": np.ones((2, 4), np.float32), "b": {}}},
        {"copies": 1, "rate": 0.5, "target": STATE["target"], "more": 1},
        {"copies": "one", "rate": 0.5, "target": STATE["target"]},
    ],
)
def test_a_state_of_another_form_is_not_kept_and_no_half_of_it(other: State) -> None:
    made = kept_state.make(InProcess(), STATE)
    assert made is not None
    made.put(other)
    assert made.get() == {}
    made.put({**STATE, "copies": 3})
    assert made.get()["copies"] == 3


def test_nobody_reads_half_of_two() -> None:
    many = 200_000
    with closing(Processes()) as backend:
        made = kept_state.make(backend, {"turn": 0, "target": np.zeros(many, np.float32)})
        assert made is not None
        found, over = (
            backend.allocate((2,), np.dtype(np.int64)),
            backend.allocate((1,), np.dtype(np.int64)),
        )

        def work(rank: Rank) -> Iterator[None]:
            turn, until_s = 0, time.monotonic() + 2.0
            while not over[0]:
                if rank.index == 0:
                    turn += 1
                    made.put({"turn": turn, "target": np.full(many, turn, np.float32)})
                    over[0] = time.monotonic() > until_s and found[0] > 10
                else:
                    state = made.get()
                    found[0] += 1
                    found[1] += bool((state["target"] != state["turn"]).any())
                yield

        assert [fault for fault in backend.run([Job(work)] * 2) if fault] == []
        assert found[0] > 10
        assert found[1] == 0
