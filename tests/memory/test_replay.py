from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.memory import Config
from manyhands.memory.replay import AT_ONCE, Replay, make
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.types import BadRequest, Demand
from support.reference_world import COLUMNS, World
from support.replays import batches, lanes_in, play, shared_of, wants


def replay_of(
    world: World, capacity: int = 200, seed: int = 0, shared: SharedLanes | None = None
) -> Replay:
    rng, lanes = np.random.default_rng(seed), lanes_in(shared) if shared else None
    config = Config(capacity=capacity)
    return make(world.spec, config, columns=COLUMNS, rng=rng, replay_lanes=lanes)


# --- Which -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    lanes=st.integers(1, 3),
    stack=st.integers(1, 4),
    n=st.integers(1, 4),
    steps=st.integers(20, 150),
    seed=st.integers(0, 1000),
)
def test_a_batch_is_what_the_world_returned(
    lanes: int, stack: int, n: int, steps: int, seed: int
) -> None:
    world = World(lanes, stack)
    memory = replay_of(world, capacity=40 * lanes, seed=seed)
    play(world, memory, steps, seed)
    expected = world.expected(memory.lanes.rows, n, 0.9)
    batch = next(batches(memory, wants(n=n)))
    for i, row in enumerate(batch.rows):
        lane, place = divmod(int(row), memory.lanes.rows)
        alike = [
            v for (at, s), v in expected.items() if (at, s % memory.lanes.rows) == (lane, place)
        ]
        observation, action, reward, discount, following = alike[0]
        shape = world.spec.observation_shape
        np.testing.assert_array_equal(batch.observation[i], observation.reshape(shape))
        np.testing.assert_array_equal(batch.next_observation[i], following.reshape(shape))
        assert batch.action[i] == action
        np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-5)
        assert batch.columns["value"][i] == observation.reshape(-1, 2)[-1, 0] / 2
        assert batch.columns["logits"][i].tolist() == (-observation.reshape(-1, 2)[-1]).tolist()
    assert batch.weight.tolist() == [1.0] * 8


def test_types_of_a_batch() -> None:
    world = World(1, 2)
    memory = replay_of(world)
    play(world, memory, 40)
    batch = next(batches(memory, wants()))
    assert batch.observation.shape == (8, 2, 2)
    assert batch.action.dtype == torch.int64
    assert {batch.reward.dtype, batch.discount.dtype, batch.weight.dtype} == {torch.float32}
    assert batch.rows.dtype == np.int64


def test_batches_are_cut_from_the_targets_of_one_whole_draw() -> None:
    world = World(2, 1)
    memory = replay_of(world)
    play(world, memory, 60)
    seen = []

    def targets(drawn: Any) -> Any:
        seen.append(len(drawn.rows))
        return replace(drawn, columns={"goal": 2 * drawn.reward})

    found = list(islice(memory.due(wants(), targets), 2 * AT_ONCE))
    assert seen == [8 * AT_ONCE] * 2
    assert all(torch.equal(batch.columns["goal"], 2 * batch.reward) for batch in found[-AT_ONCE:])
    assert [len(batch.rows) for batch in found] == [8] * len(found)


def test_buffers_are_made_once() -> None:
    world = World(2, 3)
    memory = replay_of(world)
    play(world, memory, 60)
    first, *_, last = islice(batches(memory, wants()), AT_ONCE + 1)
    assert first.observation.data_ptr() == last.observation.data_ptr()
    batch_of_another_size = next(batches(memory, wants(batch_size=5)))
    assert len(batch_of_another_size.rows) == 5


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("capacity", [1000, 120])  # lanes unequally full; all of them wrapped
def test_draws_are_uniform_over_all_that_can_be_drawn(n: int, capacity: int) -> None:
    world = World(3, 2)
    memory = replay_of(world, capacity)
    play(world, memory, 100)
    drawable = memory.lanes.drawable(n)
    demand = wants(batch_size=64, every=0.1, n=n)
    rows = np.concatenate([batch.rows.copy() for batch in batches(memory, demand)])
    drawn, counts = np.unique(rows, return_counts=True)
    assert drawn.tolist() == sorted(drawable.tolist())
    each = len(rows) / len(drawable)
    assert each > 200
    chi_square, freedom = ((counts - each) ** 2 / each).sum(), len(drawable) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


def test_one_drawable_row_among_many_is_found() -> None:
    world = World(1, 1)
    memory = replay_of(world)
    for event in ["die"] * 60 + ["go", "terminate"] + ["die"] * 60:
        memory.extend(world.step([event]))
    batch = next(batches(memory, wants(batch_size=16, n=2)))
    assert set(batch.rows.tolist()) == {59, 60, 61}  # the closing row is 62
    assert len(batch.rows) == 16


def test_where_no_row_starts_a_transition_nothing_is_due() -> None:
    world = World(2, 1)
    memory = replay_of(world)
    for _ in range(50):
        memory.extend(world.step(["die", "die"]))
        assert list(batches(memory, wants())) == []


def test_one_row_is_no_transition() -> None:
    world = World(2, 1)
    memory = replay_of(world)
    memory.extend(world.step(["go", "go"]))
    assert list(batches(memory, wants(batch_size=1))) == []


# --- How many ----------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0.1, 0.5, 1.0, 2.5, 4.0, 7.0])
@pytest.mark.parametrize("lanes", [1, 3])
def test_updates_follow_the_steps_after_the_warm_up(every: float, lanes: int) -> None:
    world = World(lanes, 1)
    memory = replay_of(world, capacity=10_000)
    demand = wants(batch_size=4, every=every, warmup=30)
    drawn = 0
    for step in range(lanes, 40 * lanes, lanes):
        play(world, memory, 1, seed=step)
        drawn += len(list(batches(memory, demand)))
        assert drawn == max(0, math.floor((step - 30) / every))
    assert memory.updates_drawn == drawn > 0
    assert memory.updates_skipped == 0


def test_a_batch_larger_than_the_memory_is_drawn_once_it_is_full() -> None:
    world = World(3, 1)
    memory = replay_of(world, capacity=200)
    demand = wants(batch_size=200)
    for full in range(1, 70):
        memory.extend(world.step(["go"] * 3))
        assert bool(list(batches(memory, demand))) == (3 * full >= 198)


def test_what_was_not_taken_stays_due() -> None:
    world = World(1, 1)
    memory = replay_of(world)
    play(world, memory, 20)
    demand = wants(batch_size=4, every=2.0, warmup=10)
    assert len(list(islice(batches(memory, demand), 2))) == 2
    assert len(list(batches(memory, demand))) == 3
    assert list(batches(memory, demand)) == []


def test_what_fell_due_before_a_batch_was_there_is_forgiven() -> None:
    world = World(1, 1)
    memory = replay_of(world)
    demand = wants(batch_size=16, every=0.5)
    due = []
    for _ in range(20):
        memory.extend(world.step(["go"]))
        due.append(len(list(batches(memory, demand))))
    assert due == [0] * 15 + [2] * 5


def test_a_memory_restored_empty_warms_up_without_a_burst() -> None:
    world = World(1, 1)
    memory, demand = replay_of(world), wants(batch_size=4, every=2.0, warmup=10)
    play(world, memory, 60)
    list(batches(memory, demand))
    state = memory.state()
    memory = replay_of(World(1, 1))
    memory.restore(state)
    due = []
    for _ in range(16):
        play(world, memory, 1)
        due.append(len(list(batches(memory, demand))))
    assert due == [0] * 9 + [1, 0] * 3 + [1]
    assert memory.steps_seen == 76


def test_lanes_too_short_for_the_sum_are_refused() -> None:
    world = World(1, 4)
    memory = replay_of(world, capacity=1)
    play(world, memory, 50)
    with pytest.raises(BadRequest, match="never holds a whole 40-step sum") as refusal:
        next(batches(memory, wants(n=40)))
    assert "44" in refusal.value.remedy


# --- Checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [30, 200])  # before and after the lanes wrap
def test_a_restored_memory_draws_the_same(steps: int) -> None:
    world, demand = World(2, 3), wants(every=1.5, n=2)
    shared, other = (shared_of(world, capacity=120) for _ in range(2))
    memory = replay_of(world, capacity=120, seed=1, shared=shared)
    play(world, memory, steps)
    list(islice(batches(memory, demand), 7))
    plain = json.loads(json.dumps(memory.state()))
    assert other.restore(shared.state(), demand.n_step) == memory.filled
    again = replay_of(World(2, 3), capacity=120, seed=2, shared=other)
    again.restore(plain)
    left, right = list(drawn(memory, demand)), list(drawn(again, demand))
    assert len(left) == len(right) > 3
    for a, b in zip(left, right, strict=True):
        for mine, theirs in zip(a, b, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert again.filled == memory.filled


def drawn(memory: Replay, demand: Demand) -> Iterator[Any]:
    for batch in batches(memory, demand):
        parts = (batch.observation, batch.next_observation, batch.reward, batch.discount)
        yield batch.rows.copy(), *(part.clone().numpy() for part in parts)


def test_forgiven_updates_and_the_empty_start_are_restored() -> None:
    world = World(1, 1)
    demand = wants(batch_size=8, every=1.0, warmup=10)
    shared = shared_of(world)
    memory = replay_of(world, shared=shared)
    memory.steps_seen = memory.empty_at = 90
    due = []
    for _ in range(14):
        memory.extend(world.step(["go"]))
        due.append(len(list(batches(memory, demand))))
        state, rows, shared = memory.state(), shared.state(), shared_of(world)
        shared.restore(rows, demand.n_step)
        memory = replay_of(world, shared=shared)
        memory.restore(state)
    assert due == [0] * 9 + [1] * 5
    assert (memory.empty_at, memory.updates_skipped) == (90, 89)


def test_capacity_is_shared_by_the_lanes() -> None:
    memory = replay_of(World(3, 1), capacity=1000)
    assert memory.capacity == 999
    assert memory.filled == 0
    play(World(3, 1), memory, 1)
    assert memory.filled >= 3
