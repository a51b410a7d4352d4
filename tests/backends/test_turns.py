"""Workers that take turns: a seed is an interleaving, and always the same one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.backends.inprocess import InProcess
from manyhands.types import Failure, Job, Rank

INT64 = np.dtype(np.int64)
Events = list[tuple[Any, ...]]


class Log:
    """What is hosted: notes when it was told what."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def note(self, vector: torch.Tensor) -> None:
        self.events.append(("told", int(vector[0])))

    def many(self) -> int:
        return sum(event[0] == "told" for event in self.events)


def busy_day(seed: int, *, main_is_busy: bool = False) -> Events:
    """Three workers that use every primitive; what happened, in order."""
    backend = InProcess(seed)
    events: list[Any] = []
    lock, channel = backend.lock(), backend.channel(3)
    host, other = backend.host(lambda: Log(events)), backend.host(lambda: Log([]))
    other_channel = backend.channel(2)

    def work(rank: Rank) -> Iterator[None]:
        for n in range(8):
            with lock:
                events.append((rank.index, n, "in"))
                granted = host.tell("note", torch.tensor([100.0 * rank.index + n]))
                events.append((rank.index, n, "out"))
            events.append((rank.index, granted, channel.put({"n": n})))
            yield
            events.append((rank.index, host.ask("many").result(1)))

    for _ in backend.run([Job(work)] * 3):
        events += [("look", len(channel.drain()))]
        if main_is_busy:
            other.tell("note", torch.zeros(1))
            other.ask("many").result(1)
            other_channel.put({})
    return events


def test_the_same_seed_is_the_same_interleaving_of_everything() -> None:
    assert busy_day(1) == busy_day(1)
    days = [str(busy_day(seed)) for seed in range(5)]
    assert len(set(days)) == 5


def test_what_main_does_meanwhile_changes_no_order() -> None:
    """Main looks on by the clock, which no seed rules."""
    assert busy_day(1, main_is_busy=True) == busy_day(1)


@pytest.mark.parametrize("seed", range(5))
def test_a_lock_excludes_the_worker_that_has_the_baton(seed: int) -> None:
    events = [event for event in busy_day(seed) if len(event) == 3 and event[2] in ("in", "out")]
    assert len(events) == 48
    for entered, left in zip(events[::2], events[1::2], strict=True):
        assert (entered[:2], entered[2], left[2]) == (left[:2], "in", "out")


def counted(backend: InProcess, guard: Callable[[], Any]) -> int:
    """Read, let others have a turn, write: 200 increments of which some may be lost."""
    counter, channel = backend.allocate((1,), INT64), backend.channel(1)

    def work(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        for _ in range(100):
            with guard():
                before = int(counter[0])
                channel.put({})
                counter[0] = before + 1
            yield

    list(backend.run([Job(work)] * 2))
    return int(counter[0])


def test_increments_are_lost_without_a_lock_only() -> None:
    backend = InProcess(1)
    lock, none = backend.lock(), threading.Semaphore(5)
    assert counted(backend, lambda: none) < 200
    assert counted(backend, lambda: lock) == 200


def test_locks_taken_in_opposite_order_are_a_failure() -> None:
    def attempt(seed: int) -> None:
        backend = InProcess(seed)
        locks = [backend.lock(), backend.lock()]

        def work(rank: Rank) -> Iterator[None]:
            for _ in range(50):
                with locks[rank.index], locks[1 - rank.index]:
                    yield_nothing()
                yield

        list(backend.run([Job(work)] * 2))

    with pytest.raises(Failure, match="deadlock: every worker"):  # noqa: PT012
        for seed in range(20):
            attempt(seed)


def yield_nothing() -> None: ...


def test_main_waits_for_a_lock_until_its_holder_has_left() -> None:
    backend = InProcess(2)
    lock, channel, inside = backend.lock(), backend.channel(1), []

    def work(rank: Rank) -> Iterator[None]:
        while True:
            with lock:
                inside.append(rank.index)
                channel.put({})
                inside.remove(rank.index)
            yield

    running = backend.run([Job(work)] * 3)
    met = 0
    for _ in range(200):
        next(running)
        met += len(inside)
        with lock:
            assert inside == []
    running.close()
    assert met > 0, "main did meet a holder"


def test_threads_end_with_the_run_however_it_ends() -> None:
    before = threading.active_count()
    backend = InProcess(1)
    left: list[int] = []

    def work(rank: Rank) -> Iterator[None]:
        try:
            for n in range(50):
                yield
                if rank.role == "broken" and n == 10:
                    raise ValueError("broken")
        finally:
            left.append(rank.index)

    running = backend.run([Job(work)] * 3)
    for _ in range(20):
        next(running)
    assert threading.active_count() == before + 3
    running.close()
    assert sorted(left) == [0, 1, 2]
    with pytest.raises(ValueError, match="broken"):
        list(backend.run([Job(work), Job(work, "broken")]))
    assert sorted(left) == [0, 0, 1, 1, 2]
    list(backend.run([Job(work)] * 2))
    assert threading.active_count() == before


def test_one_worker_needs_no_thread() -> None:
    threads: list[Any] = []

    def work(_: Rank) -> Iterator[None]:
        threads.append(threading.current_thread())
        yield

    before = threading.active_count()
    for _ in InProcess().run([Job(work)]):
        assert threading.active_count() == before
    assert threads == [threading.main_thread()]


def test_tells_wait_their_turn_also_for_one_worker() -> None:
    """So that a worker alone meets staleness, as it would with a real host."""

    def waiting(seed: int) -> list[int]:
        backend = InProcess(seed)
        events: list[Any] = []
        host = backend.host(lambda: Log(events))
        behind: list[int] = []

        def work(_: Rank) -> Iterator[None]:
            for n in range(40):
                while not host.tell("note", torch.tensor([float(n)])):
                    pass
                behind.append(n + 1 - len(events))
                yield

        list(backend.run([Job(work)]))
        return behind

    assert waiting(1) == waiting(1) != waiting(2)
    assert set(waiting(1)) == {0, 1, 2}


def test_what_was_lent_is_spoilt_when_it_is_given_back() -> None:
    class Keeper:
        def keep(self, vector: torch.Tensor) -> None:
            self.kept = vector

        def kept_sum(self) -> str:
            return str(float(self.kept.sum()))

    host = InProcess().host(Keeper)
    host.tell("keep", torch.ones(3))
    assert host.ask("kept_sum").result(1) == "nan"
