from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.memory.storage.lanes import Lanes
from manyhands.types import EnvSpec, Failure, Rows
from support.reference_world import COLUMNS, World

EVENTS = ("go", "go", "go", "go", "life", "terminate", "truncate", "die")


@st.composite
def stories(draw: Any) -> Any:
    """A world, lanes small enough to wrap often, and what happens in them."""
    world = World(draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    margin = draw(st.integers(0, 2))
    rows = draw(st.integers(world.spec.stack + 4 + margin, 16))
    lanes = Lanes(world.spec, rows, columns=COLUMNS, margin=margin)
    step = st.tuples(*[st.sampled_from(EVENTS)] * world.spec.lanes)
    return world, lanes, draw(st.lists(step, min_size=1, max_size=40))


def by_sequence(lanes: Lanes, ids: Any) -> list[tuple[int, int]]:
    """(lane, sequence number) of every id, by counting back from what was written."""
    names = []
    for lane, place in ((int(i) // lanes.rows, int(i) % lanes.rows) for i in ids):
        written = int(lanes.written[lane])
        held = range(max(0, written - lanes.rows), written)
        names.append((lane, next(s for s in held if s % lanes.rows == place)))
    return names


def rebuilt(lanes: Lanes, ids: Any) -> np.ndarray:
    out = np.full((len(ids), *lanes.spec.observation_shape), np.nan, lanes.spec.frame_dtype)
    lanes.observations(ids, out)
    return out


def check(world: World, lanes: Lanes, n: int, gamma: float) -> None:
    expected = world.expected(lanes.rows, n, gamma, lanes.margin)
    ids = lanes.drawable(n)
    assert sorted(by_sequence(lanes, ids)) == sorted(expected)
    ahead = lanes.n_step(ids, n, gamma)
    now, then = rebuilt(lanes, ids), rebuilt(lanes, ahead.bootstrap)
    for i, name in enumerate(by_sequence(lanes, ids)):
        observation, action, reward, discount, following = expected[name]
        np.testing.assert_array_equal(now[i], observation.reshape(now[i].shape))
        np.testing.assert_array_equal(then[i], following.reshape(then[i].shape))
        assert lanes.flat["action"][ids[i]] == action
        np.testing.assert_allclose(ahead.reward[i], reward, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ahead.discount[i], discount, rtol=1e-5)
        newest = observation.reshape(-1, 2)[-1]
        assert lanes.flat["value"][ids[i]] == newest[0] / 2
        np.testing.assert_array_equal(lanes.flat["logits"][ids[i]], -newest)


@settings(deadline=None, max_examples=150)
@given(stories(), st.integers(1, 4), st.sampled_from([0.9, 1.0]))
def test_every_drawable_row_yields_what_the_world_returned(
    story: Any, n: int, gamma: float
) -> None:
    world, lanes, steps = story
    for number, events in enumerate(steps):
        lanes.extend(world.step(events))
        if number % 7 == 0:
            check(world, lanes, n, gamma)
    check(world, lanes, n, gamma)
    assert [len(lane.rows) for lane in world.lanes] == lanes.written.tolist()
    assert lanes.filled == sum(min(len(lane.rows), lanes.rows) for lane in world.lanes)


@settings(deadline=None, max_examples=40)
@given(stories(), st.integers(0, 40))
def test_restored_lanes_continue_as_if_nothing_had_happened(story: Any, cut: int) -> None:
    world, lanes, steps = story
    for events in steps[:cut]:
        lanes.extend(world.step(events))
    again = Lanes(world.spec, lanes.rows, columns=COLUMNS, margin=lanes.margin)
    again.flat["frame"][:] = np.nan  # leftovers of another life must not show
    again.restore(lanes.state())
    for events in steps[cut:]:
        again.extend(world.step(events))
    check(world, again, 2, 0.9)


def test_state_holds_only_what_is_used() -> None:
    world = World(2, 2)
    lanes = Lanes(world.spec, 50, columns=COLUMNS)
    for _ in range(3):
        lanes.extend(world.step(("go", "terminate")))
    state = lanes.state()
    assert {array.shape[1] for array in state["arrays"].values()} == {6}
    assert state["written"].tolist() == [3, 6]
    lanes.extend(world.step(("go", "go")))
    assert state["written"].tolist() == [3, 6]


@pytest.mark.parametrize(
    ("lanes", "rows", "columns"), [(2, 21, COLUMNS), (1, 20, COLUMNS), (2, 20, {})]
)
def test_another_geometry_is_refused(lanes: int, rows: int, columns: dict[str, str]) -> None:
    world = World(2, 2)
    full = Lanes(world.spec, 20, columns=COLUMNS)
    full.extend(world.step(("go", "go")))
    other = Lanes(World(lanes, 2).spec, rows, columns=columns)
    with pytest.raises(Failure, match="saved memory has 2 lanes of 20 rows"):
        other.restore(full.state())
    assert other.filled == 0


def test_other_frames_are_refused() -> None:
    full = Lanes(World(1, 2).spec, 20, columns={})
    other = Lanes(EnvSpec("toy", 1, (3,), "float32", 2, 5), 20, columns={})
    with pytest.raises(Failure, match="frames differ"):
        other.restore(full.state())


def test_rewards_after_a_discount_of_zero_do_not_count() -> None:
    lanes = Lanes(EnvSpec("toy", 1, (2,), "float32", 1, 5), 20, columns={})
    for reward, discount in ((1, 1), (2, 0), (np.inf, 1), (0, 1), (0, 1)):
        lanes.extend(a_row(reward=reward, discount=discount))
    ahead = lanes.n_step(np.array([0]), 4, 0.5)
    assert (ahead.reward.tolist(), ahead.discount.tolist()) == ([2.0], [0.0])
    assert ahead.known.all()


@pytest.mark.parametrize("n", [1, 2])
def test_the_newest_row_starts_nothing_until_the_next_is_there(n: int) -> None:
    lanes = Lanes(EnvSpec("toy", 1, (2,), "float32", 1, 5), 20, columns={})
    assert lanes.drawable(n).tolist() == []
    for newest in range(45):
        lanes.extend(a_row(first=newest == 0))
        known = lanes.n_step(np.array([newest % 20]), n, 0.9).known
        assert not known.any()


def test_nothing_is_known_before_the_first_row_of_a_lane() -> None:
    lanes = Lanes(EnvSpec("toy", 1, (2,), "float32", 3, 5), 20, columns={})
    lanes.flat["frame"][-2:] = np.nan  # where the ring would reach back to
    for _ in range(3):
        lanes.extend(a_row(first=False))
    np.testing.assert_array_equal(rebuilt(lanes, np.array([0]))[0], [[0, 0], [0, 0], [1, 1]])


def test_rows_are_published_after_they_are_filled() -> None:
    """Every write but the last must find the old counter, or a reader could see half a row."""
    lanes = Lanes(EnvSpec("toy", 1, (2,), "float32", 1, 5), 20, columns={})
    seen = []

    class Watched(np.ndarray):
        def __setitem__(self, key: Any, value: Any) -> None:
            seen.append(int(lanes.written[0]))
            super().__setitem__(key, value)

    names = ("frame", "action", "reward", "discount", "first")
    for name in names:
        lanes.flat[name] = lanes.flat[name].view(Watched)
        setattr(lanes, f"_{name}", lanes.flat[name])
    lanes.extend(a_row(ended=True))
    assert seen == [0] * 2 * len(names)
    assert lanes.written.tolist() == [2]


def test_the_caller_says_where_the_arrays_live() -> None:
    asked = []

    def allocate(shape: Any, dtype: Any) -> Any:
        asked.append((shape, dtype))
        return np.zeros(shape, dtype)

    spec = EnvSpec("toy", 2, (3, 4), "uint8", 4, 5)
    lanes = Lanes(spec, 7, columns={"logits": "(5,)float32"}, allocate=allocate)
    assert ((2, 7, 3, 4), np.uint8) in asked
    assert ((2, 7, 5), np.float32) in asked
    assert ((2,), np.int64) in asked
    assert all(np.shares_memory(lanes.flat[name], lanes.arrays[name]) for name in lanes.flat)


def a_row(
    *, reward: float = 0.0, discount: float = 1.0, first: bool = False, ended: bool = False
) -> Rows:
    one = np.ones((1, 2), np.float32)
    return Rows(
        frame=one,
        action=np.zeros(1, np.int32),
        reward=np.array([reward], np.float32),
        discount=np.array([discount], np.float32),
        first=np.array([first]),
        ended=np.array([ended]),
        last_frame=one[: int(ended)],
        next_frame=one,
        columns={},
    )
