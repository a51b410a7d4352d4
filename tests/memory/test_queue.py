"""The queue of rollouts: alone against the toy world's record, and with writers that die."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.backends.processes import Processes
from manyhands.memory import Config, bytes_needed, capacity_of, kind_of
from manyhands.memory.queue import Inbox, Queue, Queues
from manyhands.memory.storage.rings import HEAD, Reader, Ring, Writer
from manyhands.types import BadRequest, EnvSpec, Failure, Job, QueueDemand, Rank, Rows
from support.reference_world import COLUMNS, World
from support.rollouts import fill, learn, outside

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest


def queue_of(world: World, demand: QueueDemand) -> Queue:
    rng = np.random.default_rng(0)
    return Queue(world.spec, Config(), demand=demand, columns=COLUMNS, rng=rng)


def compare(noted: list[Any], rollout: Any, batch: Any, world: World, many: int, side: int) -> None:
    """One rollout of a batch with what the world showed."""
    shape, lanes, steps = world.spec.observation_shape, world.spec.lanes, len(noted)
    bootstraps = dict(zip(rollout.after_at.tolist(), rollout.after, strict=True))
    for t, lane in np.ndindex(steps, lanes):
        step, beside = noted[t][lane], side * lanes + lane
        at = t * many * lanes + beside
        assert int(rollout.action[t, beside]) == int(batch.action[at]) == step["action"]
        assert float(rollout.reward[t, beside]) == float(batch.reward[at]) == step["reward"]
        assert float(rollout.discount[t, beside]) == pytest.approx(0.9 * step["discount"])
        assert bool(rollout.ended[t, beside]) == step["ended"]
        np.testing.assert_array_equal(batch.observation[at], step["observation"].reshape(shape))
        assert float(batch.columns["value"][at]) == step["observation"][-1][0] / 2
        assert (at in bootstraps) == ((t, lane) in outside(noted))
        if at in bootstraps and step["discount"] > 0:
            np.testing.assert_array_equal(bootstraps[at], step["after"].reshape(shape))


# --- One worker --------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), *[st.integers(1, 3)] * 3)
def test_targets_see_what_the_world_showed(
    seed: int, steps: int, lanes: int, stack: int, many: int
) -> None:
    world, rng = World(lanes, stack), np.random.default_rng(seed)
    demand = QueueDemand(steps, many, 2, 0.9)
    memory = queue_of(world, demand)
    for _ in range(4):  # so that the slots are used again
        noted = []
        for _ in range(many):
            assert learn(memory, demand) == ([], [])
            noted.append(fill(world, memory, steps, rng))
        assert memory.filled == many * steps * lanes
        (rollout,), (batch,) = learn(memory, demand)
        for side in range(many):
            compare(noted[side], rollout, batch, world, many, side)
        assert memory.filled == 0


def test_a_full_queue_refuses_and_says_what_to_do() -> None:
    world, demand = World(2, 1), QueueDemand(3, 1, 2, 0.9)
    memory, rng = queue_of(world, demand), np.random.default_rng(0)
    noted = [fill(world, memory, 3, rng), fill(world, memory, 3, rng)]
    assert not memory.writer.has_room()
    assert memory.ring.waits == 1
    with pytest.raises(Failure, match="all 2 slots") as refusal:
        fill(world, memory, 1, rng)
    assert "has_room" in refusal.value.remedy
    seen, batches = learn(memory, demand)  # nothing of what waited is lost
    for i in range(2):
        compare(noted[i], seen[i], batches[i], world, 1, 0)
    assert memory.writer.has_room()


def test_a_batch_that_could_never_wait_whole_is_refused() -> None:
    world, demand = World(2, 1), QueueDemand(3, 5, 2, 0.9)
    rings = [Ring.alone(world.spec, demand, columns=COLUMNS) for _ in range(2)]
    with pytest.raises(BadRequest, match="at most 4 may wait"):
        Reader(rings, demand)
    assert queue_of(world, demand).ring.slots == 5  # one worker gets what a batch takes


@pytest.mark.parametrize("again", [0, 2])
def test_the_last_batch_comes_again_while_no_other_waits(again: int) -> None:
    world, demand = World(2, 1), QueueDemand(3, 1, 2, 0.9, again)
    ring = Ring.alone(world.spec, demand, columns=COLUMNS)
    writer, inbox, rng = Writer(ring), Inbox([ring], demand), np.random.default_rng(0)
    assert learn(inbox, demand) == ([], [])  # there is none yet
    first = fill(world, writer, 3, rng)
    for time in range(1 + again):
        (rollout,), (batch,) = learn(inbox, demand)  # targets are asked for every time
        compare(first, rollout, batch, world, 1, 0)
        assert inbox.batches == 1 + time
    assert learn(inbox, demand) == ([], [])
    second, third = fill(world, writer, 3, rng), fill(world, writer, 3, rng)
    rollouts, batches = learn(inbox, demand)  # what waits goes before
    assert len(batches) == 2
    compare(second, rollouts[0], batches[0], world, 1, 0)
    compare(third, rollouts[1], batches[1], world, 1, 0)
    assert len(learn(inbox, demand)[1]) == min(1, again)


def test_a_restored_queue_continues_in_the_middle() -> None:
    world, demand = World(2, 3), QueueDemand(4, 2, 2, 0.9)
    memory, rng = queue_of(world, demand), np.random.default_rng(0)
    fill(world, memory, 8, rng)
    learn(memory, demand)
    fill(world, memory, 6, rng)
    state = memory.state()
    again = queue_of(World(2, 3), demand)
    again.restore(state)
    for _ in range(2):
        rows = world.step(["go", "truncate"])
        memory.extend(rows)
        again.extend(rows)
    (mine,), (theirs,) = learn(memory, demand)[1], learn(again, demand)[1]
    assert (mine.observation == theirs.observation).all()
    assert (mine.columns["value"] == theirs.columns["value"]).all()
    with pytest.raises(Failure, match="another shape"):
        queue_of(World(3, 3), demand).restore(state)


def test_without_its_slots_a_queue_begins_again() -> None:
    world, demand = World(1, 2), QueueDemand(4, 1, 2, 0.9)
    memory = queue_of(world, demand)
    for _ in range(7):
        memory.extend(world.step(["go"]))
    again = queue_of(World(1, 2), demand)
    again.restore({name: value for name, value in memory.state().items() if name != "lanes"})
    assert again.filled == 0
    for _ in range(4):
        again.extend(world.step(["go"]))
    _, (batch,) = learn(again, demand)
    assert batch.observation[:2, :, 0].tolist() == [[0, 8], [8, 9]]  # of the 7th nothing is known


def test_a_successor_knows_nothing_of_what_came_before() -> None:
    world, demand = World(1, 2), QueueDemand(2, 1, 3, 0.9)
    memory = queue_of(world, demand)
    for number in range(5):
        if number == 3:
            memory.writer = Writer(memory.ring)  # in the middle of the second rollout
        memory.extend(world.step(["go"]))
    _, batches = learn(memory, demand)
    seen = [batch.observation[:, :, 0].tolist() for batch in batches]
    assert seen == [[[0, 1], [1, 2]], [[0, 4], [4, 5]]]


def test_what_was_read_stays_while_its_slot_is_written_again() -> None:
    world, demand = World(2, 2), QueueDemand(3, 1, 1, 0.9)
    memory, rng = queue_of(world, demand), np.random.default_rng(0)
    noted, seen = fill(world, memory, 3, rng), []

    def targets(rollout: Any) -> Any:
        seen.append(rollout)
        return rollout

    for batch in memory.due(demand, targets):
        fill(world, memory, 3, rng)
        compare(noted, seen[0], batch, world, 1, 0)
    assert len(seen) == 1  # and what came meanwhile is not due yet
    assert memory.ring.waiting == 1


def test_an_episode_given_up_ends_with_its_last_observation() -> None:
    world, demand = World(1, 2), QueueDemand(4, 1, 2, 1.0)
    memory = queue_of(world, demand)
    for event in ("go", "go", "die", "go"):
        memory.extend(world.step([event]))
    (rollout,), (batch,) = learn(memory, demand)
    assert rollout.ended[:, 0].tolist() == [False, True, False, False]
    assert rollout.after_at.tolist() == [1, 3]
    assert rollout.after[0, :, 0].tolist() == [2, 3]  # the clock's frames; 3 was never acted on
    assert batch.observation[2, :, 0].tolist() == [0, 4]


def test_the_demand_chooses_the_queue_and_says_what_it_takes() -> None:
    spec, demand = World(3, 2).spec, QueueDemand(20, 1, 2, 0.9)
    assert kind_of(Config(), demand) == "queue"
    ring = Ring.alone(spec, demand, columns=COLUMNS)
    taken = sum(array.nbytes for array in ring.arrays.values())
    said = bytes_needed(spec, capacity_of(Config(), demand, spec), COLUMNS, "queue")
    assert taken <= said <= 2 * taken
    with pytest.raises(BadRequest, match="may not be called 'ended'"):
        Ring.alone(spec, demand, columns={"ended": "bool"})


# --- Many writers, one reader, in any order ----------------------------------------------------


@dataclass
class Hand:
    """A writer, the world it plays in, and what of it is published and not yet read."""

    world: World
    ring: Ring
    writer: Writer
    running: list = field(default_factory=list)
    published: deque = field(default_factory=deque)
    told_to_wait: int = 0

    def write(self, demand: QueueDemand, rng: np.random.Generator) -> None:
        full = not self.running and len(self.published) == self.ring.slots
        assert self.writer.has_room() is not full
        if full:
            self.told_to_wait += 1
            return
        self.running += fill(self.world, self.writer, 1, rng)
        if len(self.running) == demand.steps:
            self.published.append(self.running)
            self.running = []

    def die(self, where: str) -> None:
        """In the middle of a step: what is given is of no use from some place on."""
        if self.writer.has_room():
            rows = self.world.step(["go"] * self.world.spec.lanes)
            useless: Any = {} if where == "columns" else np.zeros((7, 7, 7))
            broken = rows._replace(**{where: useless})
            with suppress(ValueError, KeyError):
                self.writer.extend(broken)
        else:
            self.told_to_wait += 1
        for lane in self.world.lanes:
            lane.reset()
        self.writer, self.running = Writer(self.ring), []


MOVES = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1)),
    st.tuples(st.just("write"), st.integers(0, 1)),
    st.tuples(st.just("read"), st.just("")),
    st.tuples(st.just("die"), st.sampled_from(["frame", "columns", "reward", "next_frame"])),
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(MOVES, min_size=10, max_size=80),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
)
def test_order_is_kept_nothing_is_lost_nothing_torn(
    moves: Any, steps: int, slots: int, many: int, stack: int
) -> None:
    demand, rng = QueueDemand(steps, many, slots, 0.9), np.random.default_rng(0)
    hands = []
    for _ in range(2):
        world = World(2, stack)
        ring = Ring.alone(world.spec, demand, columns=COLUMNS)
        hands.append(Hand(world, ring, Writer(ring)))
    reader = Reader([hand.ring for hand in hands], demand)
    for number, (move, which) in enumerate([*moves, ("read", "")]):
        if move == "write":
            hands[which].write(demand, rng)
        elif move == "die":
            hands[number % 2].die(which)
        else:
            read(hands, reader, demand)
        waiting = [len(hand.published) for hand in hands]
        assert [hand.ring.waiting for hand in hands] == waiting
        assert max(waiting) <= slots
    assert reader.waiting < many
    assert [hand.ring.waits for hand in hands] == [hand.told_to_wait for hand in hands]


def read(hands: list[Hand], reader: Reader, demand: QueueDemand) -> None:
    """All that is due, compared with what was published; rings by turns, each in its order."""
    turn = reader.turn
    seen, batches = learn(reader, demand)
    for rollout, batch in zip(seen, batches, strict=True):
        for side in range(demand.batch_rollouts):
            turn = turn if hands[turn].published else 1 - turn
            noted = hands[turn].published.popleft()
            compare(noted, rollout, batch, hands[turn].world, demand.batch_rollouts, side)
            turn = 1 - turn


# --- Real processes ----------------------------------------------------------------------------

STEPS, LANES, WIDE = 4, 2, 5000  # frames wide enough to be seen half written
WIDE_SPEC = EnvSpec("counting", LANES, (WIDE,), "float32", 2, 3)
WIDE_COLUMNS = {"incarnation": "int64", "count": "int64"}


class Deadly(dict):
    """Kills its process when asked for its second column: in the middle of a row."""

    def __getitem__(self, name: str) -> Any:
        if name == "count":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(name)


def counted(count: int, incarnation: int) -> Rows:
    """A step whose every number says which it is; episodes are nine steps long."""
    ended = np.full(LANES, count % 9 == 8)
    frame = np.full((LANES, WIDE), count + 1, np.float32)
    return Rows(
        frame=frame,
        action=np.full(LANES, count % 3, np.int32),
        reward=np.full(LANES, count, np.float32),
        discount=np.where(ended, 0, 1).astype(np.float32),
        first=np.full(LANES, count % 9 == 0),
        ended=ended,
        last_frame=frame[ended] + 1,
        next_frame=frame + 1,
        columns={"incarnation": np.full(LANES, incarnation), "count": np.full(LANES, count)},
    )


@dataclass
class Count:
    """An actor's job. The first of rank 0 dies in the middle of its 30th step."""

    rings: list[Ring]

    def __call__(self, rank: Rank) -> Iterator[None]:
        writer, count = Writer(self.rings[rank.index]), 0
        while True:
            if writer.has_room():
                rows = counted(count, rank.incarnation)
                if (rank.index, rank.incarnation, count) == (0, 0, 30):
                    rows = rows._replace(columns=Deadly(rows.columns))
                writer.extend(rows)
                count += 1
            yield


@dataclass
class Watcher:
    """Checks every rollout that comes, and which come after which."""

    progress: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {0: [], 1: []})

    def take(self, reader: Reader, demand: QueueDemand) -> None:
        for _ in range(reader.waiting):  # no more: the writers do not wait for us
            tails = [int(ring.tail[HEAD]) for ring in reader.rings]
            batch = next(reader.due(demand, lambda rollout: rollout))
            [index] = [i for i, ring in enumerate(reader.rings) if ring.tail[HEAD] > tails[i]]
            self.check(index, batch)

    def check(self, index: int, batch: Any) -> None:
        count = batch.columns["count"].view(STEPS, LANES)
        begin, incarnation = int(count[0, 0]), int(batch.columns["incarnation"][0])
        assert (count == np.arange(begin, begin + STEPS)[:, None]).all()
        assert (batch.columns["incarnation"] == incarnation).all()
        frame = batch.observation.view(STEPS, LANES, 2, WIDE)
        assert (frame[:, :, 1] == count[:, :, None] + 1).all()
        older = np.where(count % 9 == 0, 0, count)  # before a first there is nothing
        assert (frame[:, :, 0] == older[:, :, None]).all()
        assert (batch.reward == batch.columns["count"]).all()
        self.progress[index].append((incarnation, begin))


def test_killed_writers_lose_only_what_was_not_published() -> None:
    demand = QueueDemand(STEPS, 1, 3, 0.9)
    backend = Processes()
    rings = Queues(
        WIDE_SPEC, demand, members=2, learners=1, columns=WIDE_COLUMNS, backend=backend
    ).rings
    reader, watcher, killed = Reader(rings, demand), Watcher(), False
    running: Any = backend.run([Job(Count(rings)), Job(Count(rings))])
    with closing(backend), closing(running):
        for _ in running:
            watcher.take(reader, demand)
            if not killed and len(watcher.progress[1]) >= 5:
                pids = {post.index: post.pid for post in backend.process_table()}
                os.kill(pids[1], signal.SIGKILL)
                killed = True
            if all(seen and seen[-1] >= (1, 5 * STEPS) for seen in watcher.progress.values()):
                break
    for seen in watcher.progress.values():
        for incarnation in (0, 1):
            begins = [begin for life, begin in seen if life == incarnation]
            assert begins == list(range(0, len(begins) * STEPS, STEPS))
        assert [life for life, _ in seen] == sorted(life for life, _ in seen)
    assert [begin for life, begin in watcher.progress[0] if not life][-1] == 24  # of 30 steps
