"""Shared lanes: read by all while they are written, inherited by a replacement."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.backends.inprocess import InProcess
from manyhands.memory import Config, prioritized, replay
from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.lanes import Storage
from manyhands.memory.storage.shared_lanes import MARGIN, SharedLanes, SharedView
from manyhands.types import Array
from support.reference_world import COLUMNS, World
from support.replays import batches, wants

KINDS = {"replay": replay, "prioritized": prioritized}
ROWS = 40


def lanes_of(worlds: list[World], rows: int = ROWS, readers: Sequence[range] = ()) -> SharedLanes:
    return SharedLanes(
        worlds[0].spec,
        rows,
        members=len(worlds),
        columns=COLUMNS,
        prioritized=readers,
        backend=InProcess(),
    )


def reader(
    shared_lanes: SharedLanes, lanes: SharedView, kind: str = "replay", seed: int = 0
) -> Any:
    rng, replay_lanes = np.random.default_rng(seed), ReplayLanes.alone(lanes)
    return KINDS[kind].make(
        shared_lanes.whole, Config(), columns=COLUMNS, rng=rng, replay_lanes=replay_lanes
    )


def event(rng: np.random.Generator) -> str:
    return str(rng.choice(["go", "go", "go", "life", "terminate", "truncate"]))


class Disturbed(SharedView):
    """Somebody writes whenever observations are copied."""

    disturb: Callable[[], None] = staticmethod(lambda: None)

    def observations(self, ids: Array, out: Array) -> None:
        super().observations(ids, out)
        self.disturb()


def disturbed(shared_lanes: SharedLanes) -> Disturbed:
    """The lanes of all."""
    whole, stream = shared_lanes.whole, shared_lanes.stream
    return Disturbed(
        whole,
        ROWS,
        columns=COLUMNS,
        storage=Storage(np.zeros(whole.lanes, np.int64), dict(stream.arrays)),
        stream=stream,
        members=slice(None),
    )


@settings(deadline=None, max_examples=60)
@given(
    stack=st.integers(1, 3),
    n=st.integers(1, 3),
    burst=st.integers(0, 30),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(list(KINDS)),
)
def test_no_row_is_torn_however_much_is_written_meanwhile(
    stack: int, n: int, burst: int, seed: int, kind: str
) -> None:
    worlds = [World(2, stack), World(2, stack)]
    for number, lane in enumerate(lane for world in worlds for lane in world.lanes):
        lane.clock = 10_000 * (number + 1)
        lane.reset()
    shared_lanes, rng = lanes_of(worlds), np.random.default_rng(seed)
    writers = [shared_lanes.own(0), shared_lanes.own(1)]

    def write(steps: int) -> None:
        for _ in range(steps):
            member = int(rng.integers(2))
            writers[member].extend(worlds[member].step([event(rng), event(rng)]))

    write(int(rng.integers(30, 200)))
    lanes = disturbed(shared_lanes)
    memory = reader(shared_lanes, lanes, kind, seed)
    lanes.disturb = lambda: write(int(rng.integers(0, burst + 1)))
    memory.steps_seen = 100
    drawn = list(batches(memory, wants(batch_size=16, every=25.0, n=n)))
    assert drawn
    known = {
        tuple(now.reshape(-1)): (action, reward, discount, following)
        for world in worlds
        for now, action, reward, discount, following in world.expected(10**9, n, 0.9).values()
    }
    for batch in drawn[-1:]:  # the buffers are used again
        for i in range(16):
            found = known[tuple(batch.observation[i].numpy().reshape(-1))]
            action, reward, discount, following = found
            assert batch.action[i] == action
            np.testing.assert_allclose(batch.reward[i], reward, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-5)
            np.testing.assert_array_equal(
                batch.next_observation[i].numpy().reshape(-1), following.reshape(-1)
            )


def test_torn_rows_are_counted() -> None:
    world = World(1, 1)
    shared_lanes = lanes_of([world])
    writer = shared_lanes.own(0)
    for _ in range(ROWS):
        writer.extend(world.step(["go"]))
    lanes = disturbed(shared_lanes)
    memory = reader(shared_lanes, lanes)
    bursts = iter([30])  # once, a burst over most of what was drawn

    def burst() -> None:
        for _ in range(next(bursts, 0)):
            writer.extend(world.step(["go"]))

    lanes.disturb = burst
    memory.steps_seen = 50
    assert len(list(batches(memory, wants(batch_size=32, every=50.0)))) == 1
    assert memory.torn_rows > 10


def test_a_batch_holds_rows_of_every_member_in_proportion() -> None:
    worlds = [World(1, 1), World(1, 1)]
    shared_lanes = lanes_of(worlds, rows=1000)
    for member, steps in ((0, 900), (1, 300)):
        own = shared_lanes.own(member)
        for _ in range(steps):
            own.extend(worlds[member].step(["go"]))
    memory = reader(shared_lanes, shared_lanes.view_all())
    memory.steps_seen = 1200
    rows = np.concatenate(
        [batch.rows.copy() for batch in batches(memory, wants(batch_size=400, every=100.0))]
    )
    assert np.mean(rows >= 1000) == pytest.approx(0.25, abs=0.03)


def test_some_are_those_members_alone() -> None:
    worlds = [World(2, 1) for _ in range(3)]
    shared_lanes = lanes_of(worlds)
    for member, steps in ((0, 4), (1, 6), (2, 8)):
        for _ in range(steps):
            shared_lanes.own(member).extend(worlds[member].step(["go", "go"]))
    two = shared_lanes.view(range(1, 3))
    two.refresh()
    assert (two.spec.lanes, two.filled) == (4, 2 * 6 + 2 * 8)
    shared_lanes.own(2).extend(worlds[2].step(["go", "go"]))
    two.refresh()
    assert two.filled == 2 * 6 + 2 * 9
    np.testing.assert_array_equal(two.flat["frame"][: 2 * ROWS], shared_lanes.own(1).flat["frame"])


def test_a_replacement_finds_the_rows_and_begins_an_episode() -> None:
    world = World(1, 1)
    shared_lanes = lanes_of([world])
    first = shared_lanes.own(0)
    for _ in range(10):
        first.extend(world.step(["go"]))
    next_row = int(first.next_ids()[0])
    first.flat["frame"][next_row] = -1  # it died while it wrote this
    second = shared_lanes.own(0, margin=MARGIN)
    assert second.filled == 10
    second.extend(world.step(["die"]))
    second.extend(world.step(["go"]))
    everyone = shared_lanes.view_all()
    everyone.refresh()
    known = everyone.drawable(1)
    assert list(known) == [*range(9), 10]  # the tenth row's successor began an episode
    assert everyone.margin == second.margin == MARGIN


def reader_of_twenty_rows() -> Replay:
    world = World(1, 1)
    shared_lanes = lanes_of([world])
    for _ in range(20):
        shared_lanes.own(0).extend(world.step(["go"]))
    return reader(shared_lanes, shared_lanes.view_all())


def test_a_resumed_memory_owes_nothing_and_is_warm() -> None:
    demand = wants(batch_size=4, every=2.0, warmup=10)
    memory = reader_of_twenty_rows()
    memory.resume_from(100, demand)
    assert list(batches(memory, demand)) == []
    memory.steps_seen = 104
    assert len(list(batches(memory, demand))) == 2
    empty = lanes_of([World(1, 1)])
    again = reader(empty, empty.view_all())
    again.resume_from(100, demand)
    again.steps_seen = 104
    assert list(batches(again, demand)) == []  # it warms up again


def test_a_replacement_memory_sees_drawn_steps_then_the_rest() -> None:
    """So a learner that comes late pays its debts turn by turn."""
    demand = wants(batch_size=4, every=2.0, warmup=10)
    memory = reader_of_twenty_rows()
    memory.resume_from(100, demand, drawn=15)
    assert memory.steps_seen == 10 + 2 * 15
    assert list(batches(memory, demand)) == []
    memory.steps_seen = 44
    assert len(list(batches(memory, demand))) == 2
    assert memory.updates_drawn + memory.updates_skipped == 17


def test_first_priorities_are_the_actors_own_errors() -> None:
    columns = {"q_taken": "float32", "q_best": "float32"}
    world = World(1, 1)
    config = Config(capacity=200, alpha=0.5)
    memory: Any = prioritized.make(
        world.spec, config, columns=columns, rng=np.random.default_rng(0)
    )
    rng = np.random.default_rng(1)
    for _ in range(30):
        rows = world.step(["go"])
        values = {name: rng.random(1).astype(np.float32) for name in columns}
        memory.extend(rows._replace(columns=values))
    demand = wants(n=2, gamma=0.9, every=30.0)
    list(batches(memory, demand))
    flat = memory.lanes.flat
    for t in range(28):
        goal = flat["reward"][t] + 0.9 * flat["reward"][t + 1] + 0.81 * flat["q_best"][t + 2]
        error = abs(goal - flat["q_taken"][t]) + prioritized.A_LITTLE
        assert memory.sampler.tree.leaves[t] == pytest.approx(error**0.5, rel=1e-5)
    assert not memory.sampler.tree.leaves[28:].any()  # their second successor is not there yet


def valued_memory(world: World, **values: Any) -> Any:
    columns = {"q_taken": "float32", "q_best": "float32"}
    config = Config(capacity=200, alpha=1.0, **values)
    return prioritized.make(world.spec, config, columns=columns, rng=np.random.default_rng(0))


def test_first_priorities_at_a_truncation_count_the_last_value() -> None:
    world = World(1, 1)
    memory = valued_memory(world)
    ends = {4: "truncate", 9: "terminate"}
    for t in range(20):
        value = np.full(1, 10.0 + t, np.float32)
        rows = world.step([ends.get(t, "go")])._replace(columns={"q_taken": value, "q_best": value})
        last = np.full(int(rows.ended.sum()), 50.0, np.float32)
        memory.extend(rows._replace(last_columns={"q_taken": last, "q_best": last}))
    list(batches(memory, wants(n=1, gamma=0.9, every=20.0)))
    flat, leaves = memory.lanes.flat, memory.sampler.tree.leaves
    assert leaves[4] == pytest.approx(abs(flat["reward"][4] + 0.9 * 50 - 14), rel=1e-5)
    assert leaves[10] == pytest.approx(
        abs(flat["reward"][10] - 19), rel=1e-5
    )  # closing rows: 5, 11


def test_the_largest_learned_priority_is_not_an_actors_guess() -> None:
    """A row near the newest is looked at again when more rows come: learned from, it stays."""
    world = World(1, 1)
    memory = valued_memory(world)
    demand = wants(n=3, gamma=0.9, every=1.0)

    def record(*events: str) -> None:
        for event in events:
            values = {name: np.ones(1, np.float32) for name in ("q_taken", "q_best")}
            memory.extend(world.step([event])._replace(columns=values))

    record(*["go"] * 18, "life", "go")
    memory.sampler.sample(demand, 8, 20)
    assert memory.sampler.tree.leaves[18] > 0  # a lost life: what follows is known at once
    memory.report(SimpleNamespace(rows=np.array([18])), torch.tensor([1e3]))
    record("go", "go")
    memory.sampler.sample(demand, 8, 22)
    assert memory.sampler.tree.leaves[18] == pytest.approx(1e3)


# --- Priorities -----------------------------------------------------------------------------------


def prioritized_memory(shared_lanes: SharedLanes, seed: int) -> Any:
    lanes = shared_lanes.view_all()
    return prioritized.make(
        shared_lanes.whole,
        Config(),
        columns=COLUMNS,
        rng=np.random.default_rng(seed),
        replay_lanes=ReplayLanes.alone(lanes, shared_lanes.priorities(0)),
    )


def learned(memory: Any, rng: np.random.Generator) -> None:
    """Draws, and says how surprising it was."""
    memory.drawn.refresh()
    sample = memory.sampler.sample(wants(batch_size=16), 64, 100)
    assert sample is not None
    memory.report(SimpleNamespace(rows=sample.rows), torch.from_numpy(rng.random(64) * 9))
    memory.sampler.sample(wants(batch_size=16), 64, 100)  # hears of it


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), kept=st.booleans())
def test_a_replacement_draws_by_the_priorities_before_it(seed: int, kept: bool) -> None:
    """In the same memory, or in another into which a checkpoint was read."""
    rng, world = np.random.default_rng(seed), World(2, 1)
    shared_lanes = lanes_of([world], readers=[range(1)])
    writer, memory = shared_lanes.own(0), prioritized_memory(shared_lanes, seed)
    for _ in range(int(rng.integers(1, 5))):
        for _ in range(int(rng.integers(5, 60))):
            writer.extend(world.step([event(rng), event(rng)]))
        learned(memory, rng)
    if kept:
        other = lanes_of([world], readers=[range(1)])
        assert other.restore(copy.deepcopy(shared_lanes.state()), 1) == memory.drawn.filled
        shared_lanes = other
    follower, before = prioritized_memory(shared_lanes, seed + 1), memory.sampler
    assert follower.sampler.priorities.largest == before.priorities.largest > 1
    np.testing.assert_array_equal(follower.sampler.tree.leaves, before.tree.leaves)
    assert follower.sampler.tree.total == before.tree.total
    follower.drawn.refresh()
    assert follower.sampler.sample(wants(batch_size=16), 64, 100) is not None
    np.testing.assert_array_equal(follower.sampler.tree.leaves, before.tree.leaves)


def test_what_a_killed_reader_was_adding_is_added_by_the_next() -> None:
    rng, world = np.random.default_rng(0), World(2, 1)
    shared_lanes = lanes_of([world], readers=[range(1)])
    writer, memory = shared_lanes.own(0), prioritized_memory(shared_lanes, 0)
    for _ in range(30):
        writer.extend(world.step([event(rng), event(rng)]))
    learned(memory, rng)
    for _ in range(5):
        writer.extend(world.step([event(rng), event(rng)]))
    whole = prioritized_memory(shared_lanes, 1)  # as if nobody had been killed
    priorities: Any = copy.deepcopy(shared_lanes.priorities(0))
    whole.drawn.refresh()
    whole.sampler.settle()
    whole.sampler._add_new_rows(wants(batch_size=16))
    expected: Any = shared_lanes.priorities(0)
    shared_lanes._priorities[0] = priorities
    ids = rng.choice(priorities.leaves.size, 20)
    new = expected.leaves != priorities.leaves
    priorities.leaves[ids[new[ids]]] = expected.leaves[
        ids[new[ids]]
    ]  # some of it, and then SIGKILL
    follower = prioritized_memory(shared_lanes, 2)
    follower.drawn.refresh()
    follower.sampler._add_new_rows(wants(batch_size=16))
    np.testing.assert_array_equal(priorities.leaves, expected.leaves)
