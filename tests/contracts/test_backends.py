"""What every backend promises: hosted objects by value, lossy channels, workers that all run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands import registry
from manyhands.types import Job, Seat

BACKENDS = registry.names("backends")
TAKES_TURNS = ["inprocess"]  # replays the order of a seed


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return registry.load("backends", request.param).make(3)


class Sum:
    """What is hosted: keeps copies of the vectors it was told."""

    def __init__(self) -> None:
        self.told: list[Tensor] = []

    def add(self, vector: Tensor) -> None:
        self.told.append(vector.clone())

    def total(self) -> Tensor:
        return torch.stack(self.told).sum(0)

    def scaled(self, vector: Tensor) -> Tensor:
        vector *= 2
        return vector


def test_a_hosted_object_is_told_and_asked(backend: Any) -> None:
    handle = backend.host(Sum)
    for value in (1.0, 2.0):
        assert handle.tell("add", torch.full((3,), value)) is True
    assert handle.ask("total").result(5.0).tolist() == [3.0] * 3


def test_a_vector_travels_by_value(backend: Any) -> None:
    handle = backend.host(Sum)
    vector = torch.ones(3)
    handle.tell("add", vector)
    vector.fill_(100)
    assert handle.ask("total").result(5.0).tolist() == [1.0] * 3
    asked = torch.ones(3)
    assert handle.ask("scaled", asked).result(5.0).tolist() == [2.0] * 3
    assert asked.tolist() == [1.0] * 3


def test_two_hosted_objects_are_two(backend: Any) -> None:
    one, two = backend.host(Sum), backend.host(Sum)
    one.tell("add", torch.ones(2))
    two.tell("add", torch.zeros(2))
    assert one.ask("total").result(5.0).tolist() == [1.0, 1.0]
    assert two.ask("total").result(5.0).tolist() == [0.0, 0.0]


def test_a_channel_is_bounded_and_loses_rather_than_waits(backend: Any) -> None:
    channel = backend.channel(3)
    assert channel.drain() == []
    assert [channel.put({"n": n}) for n in range(5)] == [True] * 3 + [False] * 2
    kept = [item["n"] for item in channel.drain()]
    assert len(kept) == 3
    assert kept == sorted(kept)
    assert channel.drain() == []
    assert channel.put({"n": 9}) is True
    assert channel.drain() == [{"n": 9}]


def test_what_is_shared_is_seen(backend: Any) -> None:
    shared = backend.share(torch.arange(4.0))
    assert shared.tolist() == [0, 1, 2, 3]
    shared[1] = 7
    assert shared.tolist() == [0, 7, 2, 3]


def test_a_group_of_one_averages_with_itself(backend: Any) -> None:
    group = backend.group(1)
    assert group.members() == {0}
    assert group.reduce(torch.arange(3.0)).tolist() == [0, 1, 2]
    assert group.exchange(torch.arange(3.0), 0).tolist() == [0, 1, 2]


# --- Turns ----------------------------------------------------------------------------------------


def order(name: str, seed: int, turns: tuple[int, ...]) -> list[int]:
    """Who had each turn; worker i takes ``turns[i]`` of them."""
    taken: list[int] = []

    def worker(i: int) -> Callable[[Seat], Iterator[None]]:
        def run(seat: Seat) -> Iterator[None]:
            for _ in range(turns[i]):
                assert seat.index == i
                taken.append(i)
                yield

        return run

    looks = sum(1 for _ in registry.load("backends", name).make(seed).run(
        [Job(worker(i)) for i in range(len(turns))]
    ))  # fmt: skip
    assert looks >= sum(turns)
    return taken


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_the_seed_decides_whose_turn_it_is(name: str) -> None:
    turns = (30, 30, 30)
    assert order(name, 1, turns) == order(name, 1, turns)
    assert order(name, 1, turns) != order(name, 2, turns)


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_all_get_turns_and_who_has_finished_leaves(name: str) -> None:
    taken = order(name, 1, (5, 200, 100))
    assert [taken.count(i) for i in range(3)] == [5, 200, 100]
    assert set(taken[:20]) == {0, 1, 2}
    alternations = sum(a != b for a, b in pairwise(taken))
    assert alternations > 50, "nobody has the floor for long"


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_main_looks_on_after_every_turn_and_may_stop(name: str) -> None:
    taken: list[int] = []

    def endless(_: Seat) -> Iterator[None]:
        while True:
            taken.append(1)
            yield

    for looks, _ in enumerate(registry.load("backends", name).make(1).run([Job(endless)] * 2), 1):
        assert len(taken) == looks
        if looks == 10:
            break
    assert len(taken) == 10


@pytest.mark.parametrize("name", TAKES_TURNS)
def test_an_error_in_a_worker_is_not_swallowed(name: str) -> None:
    def broken(_: Seat) -> Iterator[None]:
        yield
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(registry.load("backends", name).make(1).run([Job(broken)]))
