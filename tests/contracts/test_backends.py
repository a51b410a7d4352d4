"""What every backend promises: messages by value, lossy channels, locks, workers that all run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor

from manyhands.config import registry
from manyhands.memory.storage.lanes import Lanes
from manyhands.types import EnvSpec, Failure, Job, Rank, Rows
from support import on_ray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
TAKES_TURNS = ["inprocess"]  # replays the order of a seed
LONG_S = 60.0


@pytest.fixture(params=on_ray.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    with on_ray.made(request) as made:
        yield made


@pytest.fixture(params=["slots", "queue"])
def hosting(backend: Any, request: pytest.FixtureRequest) -> Any:
    """A backend whose hosted objects are reached in each of the ways there are."""
    backend.host = partial(backend.host, transport=request.param)
    return backend


def run(backend: Any, *works: Callable[[Rank], Iterator[None]]) -> None:
    """To the end, without a fault."""
    assert [fault for fault in backend.run([Job(work) for work in works]) if fault] == []


# --- Hosted objects -------------------------------------------------------------------------------


class Sum:
    """What is hosted: keeps copies of the vectors it was told."""

    def __init__(self) -> None:
        self.told: list[Tensor] = []

    def add(self, vector: Tensor, *scales: float) -> None:
        self.told.append(vector.clone())
        for scale in scales:
            self.told[-1] *= scale

    def total(self) -> Tensor:
        return torch.stack(self.told).sum(0)

    def count(self) -> int:
        return len(self.told)

    def scaled(self, vector: Tensor, scale: float) -> Tensor:
        vector *= scale
        return vector

    def both(self, vector: Tensor) -> tuple[Tensor, dict[str, Any]]:
        return vector + 1, {"n": len(vector), "names": ["a", None, 1.5]}

    def described(self, vector: Tensor, *numbers: float) -> str:
        return f"{list(vector.shape)} {vector.dtype} {numbers}"

    def broken(self) -> None:
        raise ValueError("no such thing")


def test_a_hosted_object_is_told_and_asked(hosting: Any) -> None:
    one, two = hosting.host(Sum, name="one"), hosting.host(Sum, name="two")
    assert one.tell("add", torch.full((3,), 1.0)) is True
    assert one.tell("add", torch.full((3,), 2.0), 10, 0.5) is True
    assert two.tell("add", torch.zeros(3)) is True
    assert one.ask("total").result(LONG_S).tolist() == [11.0] * 3
    assert two.ask("total").result(LONG_S).tolist() == [0.0] * 3
    assert {(p.role, p.index, p.incarnation) for p in hosting.process_table()} == {
        ("one", 0, 0), ("two", 1, 0)
    }  # fmt: skip


def test_a_vector_travels_by_value(hosting: Any) -> None:
    handle = hosting.host(Sum)
    vector = torch.ones(3)
    handle.tell("add", vector)
    vector.fill_(100)
    assert handle.ask("total").result(LONG_S).tolist() == [1.0] * 3
    asked = torch.ones(3)
    assert handle.ask("scaled", asked, 2.0).result(LONG_S).tolist() == [2.0] * 3
    assert asked.tolist() == [1.0] * 3


def test_answers_are_vectors_plain_data_or_both(hosting: Any) -> None:
    handle = hosting.host(Sum)
    assert handle.ask("count").result(LONG_S) == 0
    first = handle.ask("both", torch.arange(3.0))
    second = handle.ask("both", torch.arange(4.0))  # before the first was looked at
    assert second.result(LONG_S)[0].tolist() == [1, 2, 3, 4]
    vector, data = first.result(LONG_S)
    assert vector.tolist() == [1, 2, 3]
    assert data == {"n": 3, "names": ["a", None, 1.5]}
    with pytest.raises(Failure, match="broken raised ValueError: no such thing"):
        handle.ask("broken").result(LONG_S)
    assert handle.ask("count").result(LONG_S) == 0


def test_what_arrives_is_a_vector_of_float32_and_floats(hosting: Any) -> None:
    handle = hosting.host(Sum)
    sent = torch.ones(2, 3, dtype=torch.float64).T  # neither flat, contiguous nor single
    described = handle.ask("described", sent, 1, 2.5).result(LONG_S)
    assert described == "[6] torch.float32 (1.0, 2.5)"
    assert handle.ask("both", sent).result(LONG_S)[0].shape == (6,)


def test_a_tell_granted_is_done_once_and_one_refused_is_not(hosting: Any) -> None:
    handle = hosting.host(Sum, depth=3)
    granted = sum(handle.tell("add", torch.ones(1)) for _ in range(500))
    assert granted >= 3
    assert handle.ask("total").result(LONG_S).tolist() == [granted]


def test_a_vector_too_long_for_its_place_is_refused(hosting: Any) -> None:
    handle = hosting.host(Sum, numbers=8)
    for send in (handle.tell, handle.ask):
        with pytest.raises(ValueError, match="9 numbers do not fit messages of 8"):
            send("add", torch.ones(9))
    assert handle.tell("add", torch.ones(8)) is True
    assert handle.ask("count").result(LONG_S) == 1


def test_several_clients_use_one_handle(hosting: Any) -> None:
    handle = hosting.host(Sum)
    heard = hosting.allocate((3,), np.dtype(np.int64))

    def work(rank: Rank) -> Iterator[None]:
        for _ in range(20):
            while not handle.tell("add", torch.full((2,), 10.0**rank.index)):
                yield
        heard[rank.index] = handle.ask("count").result(LONG_S)
        yield

    run(hosting, work, work, work)
    assert handle.ask("total").result(LONG_S).tolist() == [20 * 111.0] * 2
    assert (heard >= 20).all(), "an ask is answered after the tells before it"


# --- Memory, channels, locks ----------------------------------------------------------------------


def test_a_channel_is_bounded_and_loses_rather_than_waits(backend: Any) -> None:
    channel = backend.channel(3)
    assert channel.drain() == []
    assert [channel.put({"n": n}) for n in range(5)] == [True] * 3 + [False] * 2
    kept = [item["n"] for item in channel.drain()]
    assert len(kept) == 3
    assert kept == sorted(kept)
    assert channel.drain() == []
    assert channel.put({"n": 9, "x": np.float32(0.5), "deep": [{"a": None}]}) is True
    assert channel.drain() == [{"n": 9, "x": 0.5, "deep": [{"a": None}]}]


def test_all_write_to_a_channel_and_none_takes_anothers_place(backend: Any) -> None:
    channel = backend.channel(4)

    def work(rank: Rank) -> Iterator[None]:
        for n in range(6):
            channel.put({"rank": rank.index, "n": n})
            yield

    run(backend, work, work)
    items = channel.drain()
    for rank in (0, 1):
        assert [item["n"] for item in items if item["rank"] == rank] == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_what_is_shared_is_seen(backend: Any, dtype: torch.dtype) -> None:
    before = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
    shared = backend.share(before)
    assert shared.dtype == dtype
    assert torch.equal(shared, before)
    shared[0] = 1
    assert before[0].tolist() == [0, 1], "it is a copy"
    assert shared.tolist() == [[1, 1], [1, 0]]


def test_workers_share_tensors_arrays_and_views_of_them(backend: Any) -> None:
    vector = backend.share(torch.zeros(6))
    part, seen = vector[2:4], backend.allocate((3, 2), np.dtype(np.float32))
    column, alone = seen[:, 1], torch.zeros(2)

    def work(rank: Rank) -> Iterator[None]:
        part[rank.index] += 1
        column[rank.index] = float(vector[2 + rank.index])
        alone.fill_(5)
        yield

    run(backend, work, work)
    assert vector.tolist() == [0, 0, 1, 1, 0, 0]
    assert seen.tolist() == [[0, 1], [0, 1], [0, 0]]


def test_lanes_can_live_in_shared_memory(backend: Any) -> None:
    spec = EnvSpec("x", lanes=2, frame_shape=(3,), frame_dtype="float32", stack=1, actions=2)
    lanes = Lanes(spec, 50, columns={}, allocate=backend.allocate, margin=2)

    def work(_: Rank) -> Iterator[None]:
        ones = np.ones(2, np.float32)
        for i in range(5):
            lanes.extend(
                Rows(
                    np.full((2, 3), i, np.float32), ones.astype(np.int32), i * ones, ones,
                    np.array([i == 0] * 2), np.zeros(2, bool), np.zeros((0, 3), np.float32),
                    np.zeros((2, 3), np.float32), {},
                )
            )  # fmt: skip
            yield

    run(backend, work)
    assert lanes.written.tolist() == [5, 5]
    assert lanes.arrays["reward"][1, :5].tolist() == [0, 1, 2, 3, 4]


def test_no_increment_is_lost_under_a_lock(backend: Any) -> None:
    counter, lock = backend.allocate((1,), np.dtype(np.int64)), backend.lock()

    def work(_: Rank) -> Iterator[None]:
        for i in range(2500):
            with lock as orderly:
                assert orderly
                counter[0] = int(counter[0]) + 1
            if i % 100 == 0:
                yield

    run(backend, work, work, work, work)
    assert counter[0] == 10_000


def test_locks_of_each_node_exclude_its_jobs(backend: Any) -> None:
    """Here there is one node, and the backend says so."""
    counter, lock = backend.allocate((1,), np.dtype(np.int64)), backend.lock(elsewhere=True)
    assert backend.has_other_nodes() is False

    def work(_: Rank) -> Iterator[None]:
        for i in range(500):
            with lock:
                counter[0] = int(counter[0]) + 1
            if i % 100 == 0:
                yield

    run(backend, work, work)
    assert counter[0] == 1000


def test_a_group_of_one_averages_with_itself(backend: Any) -> None:
    group = backend.group(1)
    assert group.members() == {0}
    assert not group.join(0, list)
    assert group.members() == {0}
    mean, numbers = group.reduce(torch.arange(3.0), 0.1, 7)
    assert mean.tolist() == [0, 1, 2]
    assert numbers == {0: (0.1, 7.0)}


def vector_of(member: int, turn: int) -> Tensor:
    return torch.randn(1000, generator=torch.Generator().manual_seed(100 * member + turn))


def average(members: list[int], turn: int) -> Tensor:
    total = vector_of(members[0], turn).clone()
    for member in members[1:]:
        total += vector_of(member, turn)
    return total / len(members)


def test_a_group_averages_without_workers_that_have_ended(backend: Any) -> None:
    group, turns = backend.group(3, numbers=1000), (6, 9, 4)
    done = backend.allocate((3,), np.dtype(np.int64))

    def work(rank: Rank) -> Iterator[None]:
        assert not group.join(rank.index, lambda: None)
        for turn in range(turns[rank.index]):
            for _ in range(turn % (rank.index + 1)):  # they come at different times
                yield
            there = [member for member in range(3) if turn < turns[member]]
            mean, numbers = group.reduce(vector_of(rank.index, turn), 0.1 + rank.index, turn)
            assert numbers == {member: (0.1 + member, float(turn)) for member in there}
            assert torch.equal(mean, average(there, turn))
            mean.fill_(float("nan"))  # it is the caller's
            yield
        done[rank.index] = 1

    run(backend, work, work, work)
    assert done.all()


@pytest.mark.parametrize("end", ["finish", "stop", "close"])
def test_a_worker_that_waits_in_a_group_parks_and_stops_there(backend: Any, end: str) -> None:
    """The others may be parked already, and would never come."""
    group, rounds = backend.group(2, numbers=4), backend.allocate((2,), np.dtype(np.int64))
    most = backend.allocate((1,), np.dtype(np.int64))
    most[0] = 10**9

    def work(rank: Rank) -> Iterator[None]:
        group.join(rank.index, lambda: None)
        while rounds[rank.index] < most[0]:
            for _ in range(40 * rank.index):
                yield
            group.reduce(torch.zeros(4))
            rounds[rank.index] += 1
            yield

    running = backend.run([Job(work), Job(work)])
    for n in range(1, 4):
        while rounds.min() < 2 * n:
            next(running)
        assert backend.park(LONG_S) == frozenset()
        before = rounds.copy()
        for _ in range(5):
            next(running)
        assert (rounds == before).all()
        if n == 3 and end == "stop":
            backend.stop()
        elif n == 3 and end == "close":
            running.close()
        else:
            most[0] = rounds.max() + 3 if n == 3 else most[0]
            backend.unpark()
    assert [fault for fault in running if fault] == []
    assert backend.process_table() == []


# --- Workers --------------------------------------------------------------------------------------


def test_every_worker_knows_its_rank(backend: Any) -> None:
    channel = backend.channel(4)

    def work(rank: Rank) -> Iterator[None]:
        channel.put({"rank": [rank.index, rank.incarnation, rank.role]})
        yield

    list(backend.run([Job(work, "actor"), Job(work, "learner"), Job(work)]))
    ranks = sorted(item["rank"] for item in channel.drain())
    assert ranks == [[0, 0, "actor"], [1, 0, "learner"], [2, 0, "worker"]]
    assert backend.process_table() == []


def test_workers_park_continue_and_stop(backend: Any) -> None:
    turns = backend.allocate((2,), np.dtype(np.int64))
    left = backend.allocate((2,), np.dtype(np.int64))

    def work(rank: Rank) -> Iterator[None]:
        try:
            while True:
                turns[rank.index] += 1
                yield
        finally:
            left[rank.index] = 1

    running = backend.run([Job(work), Job(work)])

    def look_until(condition: Callable[[], bool]) -> None:
        while not condition():
            next(running)

    look_until(lambda: bool(turns.min() > 0))
    look_until(lambda: len(backend.process_table()) == 2)  # Ray: later
    assert [post.index for post in backend.process_table()] == [0, 1]
    assert all(
        (post.pid == os.getpid()) is isinstance_local(backend) for post in backend.process_table()
    )
    assert backend.park(LONG_S) == frozenset()
    before = turns.copy()
    for _ in range(5):
        next(running)
    assert (turns == before).all()
    backend.unpark()
    look_until(lambda: bool((turns > before).all()))
    backend.stop()
    for _ in running:
        pass
    assert left.tolist() == [1, 1], "each left by its own finally"


def isinstance_local(backend: Any) -> bool:
    return bool(type(backend).__name__ == "InProcess")


def test_closing_ends_the_workers_and_another_run_may_follow(backend: Any) -> None:
    turns = backend.allocate((2,), np.dtype(np.int64))

    def work(rank: Rank) -> Iterator[None]:
        while True:
            turns[rank.index] += 1
            yield

    for _ in range(2):
        turns[:] = 0
        running = backend.run([Job(work), Job(work)])
        while turns.min() == 0:
            next(running)
        running.close()
        before = turns.copy()
        assert backend.process_table() == []
        assert (turns == before).all()


def test_what_cannot_go_well_is_not_swallowed(backend: Any) -> None:
    def broken(_: Rank) -> Iterator[None]:
        yield
        raise ValueError("broken")

    with pytest.raises((ValueError, Failure), match="broken"):
        list(backend.run([Job(broken)]))
    assert backend.process_table() == []


# --- Turns ----------------------------------------------------------------------------------------


def order(name: str, seed: int, turns: tuple[int, ...]) -> list[int]:
    """The worker of each turn. Worker i takes ``turns[i]`` of them."""
    taken: list[int] = []

    def worker(i: int) -> Callable[[Rank], Iterator[None]]:
        def run(rank: Rank) -> Iterator[None]:
            for _ in range(turns[i]):
                assert rank.index == i
                taken.append(i)
                yield

        return run

    looks = sum(1 for _ in registry.load("backends", name).make(seed).run(
        [Job(worker(i)) for i in range(len(turns))]
    ))  # fmt: skip
    assert looks >= sum(turns)
    return taken


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_the_seed_decides_the_order_of_turns(name: str) -> None:
    turns = (30, 30, 30)
    assert order(name, 1, turns) == order(name, 1, turns)
    assert order(name, 1, turns) != order(name, 2, turns)


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_all_get_turns_and_finished_workers_leave(name: str) -> None:
    taken = order(name, 1, (5, 200, 100))
    assert [taken.count(i) for i in range(3)] == [5, 200, 100]
    assert set(taken[:20]) == {0, 1, 2}
    alternations = sum(a != b for a, b in pairwise(taken))
    assert alternations > 50, "nobody has the floor for long"


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_main_looks_on_after_every_turn_and_may_stop(name: str) -> None:
    taken: list[int] = []

    def endless(_: Rank) -> Iterator[None]:
        while True:
            taken.append(1)
            yield

    for looks, _ in enumerate(registry.load("backends", name).make(1).run([Job(endless)] * 2), 1):
        assert len(taken) == looks
        if looks == 10:
            break
    assert len(taken) == 10
