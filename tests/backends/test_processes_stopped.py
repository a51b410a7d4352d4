"""A process that is stopped, wherever it is, is found, killed and replaced. Main never waits."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from manyhands.backends.processes import Processes, control
from manyhands.backends.processes.supervisor import Patience
from manyhands.types import Failure, Job, Rank
from support.watching import LONG_S, look_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)


@pytest.fixture
def patient() -> Iterator[Processes]:
    """Leaves a worker time to start before a stopped host is replaced."""
    with closing(Processes(patience=Patience(hang_s=8.0))) as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[Processes]:
    with closing(Processes(patience=Patience(hang_s=2.0, backoff_s=0.01))) as made:
        yield made


class Counter:
    def __init__(self) -> None:
        self.told = 0

    def count(self) -> None:
        self.told += 1

    def total(self) -> int:
        return self.told


@pytest.mark.parametrize("transport", ["slots", "queue"])
def test_a_host_stopped_while_nothing_was_to_be_done(transport: str, hasty: Processes) -> None:
    handle = hasty.host(Counter, name="counter", transport=transport)
    assert handle.ask("total").result(LONG_S) == 0
    [post] = hasty.process_table()
    os.kill(post.pid, signal.SIGSTOP)
    assert handle.ask("total").result(LONG_S) == 0, "by its replacement"
    [again] = hasty.process_table()
    assert (again.incarnation, again.pid == post.pid) == (1, False)


def test_a_host_with_nothing_to_do_is_left_alone() -> None:
    with closing(Processes(patience=Patience(hang_s=4.0))) as backend:
        handle = backend.host(Counter)
        assert handle.ask("total").result(LONG_S) == 0
        until = time.monotonic() + 7.0
        while time.monotonic() < until:
            assert not backend.attend()
            time.sleep(0.01)
        assert [post.incarnation for post in backend.process_table()] == [0]


def test_a_worker_stopped_while_parked_hangs_once_unparked(hasty: Processes) -> None:
    turns, over = hasty.allocate((2,), INT64), hasty.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        while not over[0]:
            turns[rank.index] += 1
            yield

    running = hasty.run([Job(work), Job(work)])
    look_until(running, lambda: bool(turns.min() > 0))
    assert hasty.park(LONG_S) == frozenset()
    stopped = next(post.pid for post in hasty.process_table() if post.index == 1)
    os.kill(stopped, signal.SIGSTOP)
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        assert next(running) is None, "a worker that is to park may take its time"
    hasty.unpark()
    now = turns[1]
    faults = look_until(running, lambda: bool(turns[1] > now))
    assert [(fault.process.index, fault.process.pid) for fault in faults] == [(1, stopped)]
    over[0] = 1
    assert not any(running)


def test_main_kills_a_stopped_holder_of_a_lock_it_waits_for(hasty: Processes) -> None:
    lock, inside = hasty.lock(), hasty.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        yield
        while rank.incarnation == 0:
            with lock:
                inside[0] += 1
                time.sleep(0.05)
            yield

    running = hasty.run([Job(work)])
    look_until(running, lambda: bool(inside[0] > 0))
    [post] = hasty.process_table()
    caught = False
    while not caught:  # until it was inside when it was stopped
        os.kill(post.pid, signal.SIGSTOP)
        while psutil.Process(post.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        caught = bool(lock._inside[0])
        if not caught:
            os.kill(post.pid, signal.SIGCONT)
            next(running)
    with lock as orderly:
        assert not orderly
    faults = [fault for fault in running if fault]
    assert [fault.cause for fault in faults] == ["no progress for 2 s"]


def test_a_worker_given_up_does_not_keep_main_from_the_others() -> None:
    with closing(Processes(patience=Patience(backoff_s=0.01, deaths=1))) as backend:
        handle = backend.host(Counter)
        assert handle.tell("count")

        def work(_: Rank) -> Iterator[None]:
            yield
            raise OSError("no more")

        with pytest.raises(Failure, match="no more"):
            list(backend.run([Job(work)]))
        assert handle.ask("total").result(LONG_S) == 1


def test_a_host_that_is_given_up_is_not_waited_for() -> None:
    class Mortal:
        def total(self) -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

    with closing(Processes(patience=Patience(backoff_s=0.01, deaths=2))) as backend:
        handle = backend.host(Mortal, name="mortal")
        with pytest.raises(Failure, match="mortal 0 died 2 times"):
            handle.ask("total").result(LONG_S)


def test_a_signal_without_a_name_is_told_by_its_number(hasty: Processes) -> None:
    lives = hasty.allocate((1,), INT64)

    def work(_: Rank) -> Iterator[None]:
        lives[0] += 1
        yield
        if lives[0] == 1:
            os.kill(os.getpid(), signal.SIGRTMIN + 1)
        yield

    faults = [fault for fault in hasty.run([Job(work)]) if fault]
    assert [fault.cause for fault in faults] == [f"killed by signal {signal.SIGRTMIN + 1}"]


def test_a_worker_that_just_unparks_is_not_taken_for_parked() -> None:
    """It has read that it may continue, and is told to park again before it has said so."""
    table = control.new_table()
    control.tell(table, 1, control.PARK)
    table[1, control.STATE], table[1, control.PARKED_FOR] = control.PARKED, 1  # as `obey` does
    assert control.is_parked(table, 1)
    control.tell(table, 1, control.GO)
    control.tell(table, 1, control.PARK)
    assert not control.is_parked(table, 1)


def test_a_replacement_does_not_overwrite_a_full_ring(patient: Processes) -> None:
    handle: Any = patient.host(Counter, name="counter", depth=2)
    assert handle.ask("total").result(LONG_S) == 0
    [host] = patient.process_table()
    os.kill(host.pid, signal.SIGSTOP)
    answers = patient.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        if rank.incarnation == 0:
            while handle.tell("count"):
                pass
            handle.ask("total")
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        answers[0] = handle.ask("total").result(LONG_S)

    faults = [fault for fault in patient.run([Job(work)]) if fault]
    assert [fault.process.role for fault in faults].count("worker") >= 1
    # The host that was stopped is followed by one that knows of nothing before, but does it all.
    assert answers[0] == 2
