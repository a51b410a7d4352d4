"""Dealing saved rows to other lanes: nothing torn, nothing out of order, the newest kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.backends.inprocess import InProcess
from manyhands.memory.storage import dealing
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.types import Array, EnvSpec, Rows

FRAME = (2,)


def spec_of(lanes: int, stack: int = 1) -> EnvSpec:
    return EnvSpec("w", lanes, FRAME, "float32", stack, 4)


def lanes_of(members: int, lanes: int, rows: int, *, readers: Any = ()) -> SharedLanes:
    backend = InProcess()
    return SharedLanes(
        spec_of(lanes), rows, members=members, columns={}, prioritized=readers, backend=backend
    )


def write(shared: SharedLanes, steps: list[int], rng: np.random.Generator) -> None:
    """Frame (lane, time): the row's own history, to be recognised wherever it goes."""
    for member, count in enumerate(steps):
        own, lanes = shared.own(member), shared.spec.lanes
        first = np.ones(lanes, bool)
        for time in range(count):
            ended = rng.random(lanes) < 0.1
            names = member * lanes + np.arange(lanes)
            frame = np.stack([names, np.full(lanes, time)], 1).astype(np.float32)
            own.extend(
                Rows(
                    frame=frame,
                    action=rng.integers(0, 4, lanes).astype(np.int32),
                    reward=frame[:, 1],
                    discount=np.where(ended, 0, 1).astype(np.float32),
                    first=first,
                    ended=ended,
                    last_frame=frame[ended] + [[0, 0.5]],
                    next_frame=frame,
                    columns={},
                )
            )
            first = ended


def history(shared: SharedLanes) -> list[Array]:
    """Of every lane its rows, oldest first."""
    found = []
    for lane, written in enumerate(shared.written()):
        there = min(int(written), shared.rows)
        places = np.arange(written - there, written) % shared.rows
        found.append(shared.stream.arrays["frame"][lane, places])
    return found


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(8, 40))


@settings(deadline=None, max_examples=80)
@given(
    before=shapes,
    after=shapes,
    steps=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_pieces_are_whole_and_the_newest(before: Any, after: Any, steps: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    saved, dealt = lanes_of(*before), lanes_of(*after)
    write(saved, steps[: before[0]], rng)
    kept = dealt.restore(saved.state(), 1)
    old, new = history(saved), history(dealt)
    total, room = sum(map(len, old)), after[0] * after[1] * after[2]
    assert kept == sum(map(len, new))
    assert min(total, room) - len(old) < kept <= min(total, room)
    for lane in old:  # of each lane a suffix is kept: its newest rows
        name = lane[:1, 0]
        rows = np.concatenate([part[part[:, 0] == name] for part in new]) if len(lane) else lane
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        np.testing.assert_array_equal(rows, lane[len(lane) - len(rows) :])
    if before[0] * before[1] == after[0] * after[1] and before[2] == after[2]:
        return  # the lanes come back as they were
    for number, lane in enumerate(new):
        firsts = dealt.stream.arrays["first"][number, : len(lane)]
        for place, row in enumerate(lane):
            follows = place and row[0] == lane[place - 1, 0] and row[1] > lane[place - 1, 1]
            assert firsts[place] or follows  # in time order, or a piece begins here


def test_the_same_lanes_come_back_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    saved, again = lanes_of(2, 2, 20), lanes_of(2, 2, 20)
    write(saved, [33, 12], rng)
    again.restore(saved.state(), 1)
    np.testing.assert_array_equal(again.written(), saved.written())
    for name, array in saved.stream.arrays.items():
        np.testing.assert_array_equal(again.stream.arrays[name], array)


def test_priorities_go_with_their_rows() -> None:
    rng = np.random.default_rng(2)
    saved = lanes_of(1, 2, 30, readers=[range(1)])
    write(saved, [25], rng)
    view = saved.view_all()
    view.refresh()
    drawable = view.drawable(1)
    priorities = saved.priorities(0)
    assert priorities is not None
    priorities.leaves[drawable] = 1 + saved.stream.arrays["frame"].reshape(-1, 2)[drawable, 1]
    priorities.taken[:] = saved.written()
    dealt = lanes_of(2, 1, 30, readers=[range(1), range(1, 2)])
    dealt.restore(saved.state(), 1)
    for reader in range(2):
        mine, lanes = dealt.priorities(reader), dealt.view(range(reader, reader + 1))
        lanes.refresh()
        assert mine is not None
        assert mine.taken.tolist() == lanes.written.tolist()
        known = lanes.drawable(1)
        frames = dealt.stream.arrays["frame"][reader]
        np.testing.assert_array_equal(mine.leaves[known], 1 + frames[known, 1])
        others = np.setdiff1d(np.arange(30), known)
        assert not mine.leaves[others].any()


def test_rows_of_another_kind_are_refused() -> None:
    saved = lanes_of(1, 1, 10)
    write(saved, [5], np.random.default_rng(0))
    state = saved.state()
    state["arrays"] = {**state["arrays"], "frame": state["arrays"]["frame"][..., :1]}
    with pytest.raises(ValueError, match="frames that differ"):
        lanes_of(2, 1, 10).restore(state, 1)


def test_pieces_fill_lanes_of_equal_length() -> None:
    found = list(dealing.pieces(np.array([5, 3]), 10, 2, 10))
    assert found == [(0, 0, 4, 0, 0), (0, 4, 1, 1, 0), (1, 0, 3, 1, 1)]


@pytest.mark.parametrize(("name", "value"), [("action", 77), ("reward", np.nan), ("discount", 2.0)])
def test_rows_that_no_run_wrote_are_refused(name: str, value: float) -> None:
    saved = lanes_of(1, 1, 10)
    write(saved, [5], np.random.default_rng(0))
    saved.stream.arrays[name][0, 2] = value
    with pytest.raises(ValueError, match=name):
        lanes_of(2, 1, 10).restore(saved.state(), 1)


def test_a_claim_of_many_rows_takes_no_memory() -> None:
    saved = lanes_of(1, 1, 10, readers=[range(1)])
    write(saved, [5], np.random.default_rng(0))
    state = saved.state()
    dealt = lanes_of(2, 1, 10, readers=[range(1), range(1, 2)])
    assert dealt.restore({**state, "rows": 2**40}, 1) > 0
    reader = {**state["priorities"]["0"], "priorities": np.zeros((2**30, 0))}
    with pytest.raises(ValueError, match="other rows"):
        dealt.restore({**state, "rows": 11, "priorities": {"0": reader}}, 1)
