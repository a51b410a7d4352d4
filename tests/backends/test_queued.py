"""The queue beside the shared slots: the same promises when its ends are killed and stopped."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor

from manyhands.backends.processes import Processes, queued
from manyhands.backends.processes.supervisor import Patience
from manyhands.types import Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
LONG_S = 60.0
MANY = 300_000  # numbers: more pieces than the queue holds


class Ledger:
    """Keeps its sum in shared memory, so that it outlives its process."""

    def __init__(self, kept: Tensor, lives: Any) -> None:
        self.kept, self.lives = kept, lives
        lives[0] += 1

    def add(self, vector: Tensor) -> None:
        if vector[0] < 0 and self.lives[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.kept += vector

    def total(self) -> tuple[Tensor, int]:
        return self.kept, int(self.lives[0])

    def fragile(self, vector: Tensor) -> Tensor:
        if self.lives[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return vector + 1


@pytest.fixture
def backend() -> Iterator[Processes]:
    with closing(Processes(patience=Patience(backoff_s=0.01, deaths=3))) as made:
        yield made


def ledger(backend: Processes, numbers: int = MANY, **options: Any) -> Any:
    kept = backend.share(torch.zeros(numbers))
    lives = backend.allocate((1,), np.dtype(np.int64))
    given = {"numbers": numbers, "name": "ledger", "transport": "queue", **options}
    return backend.host(lambda: Ledger(kept, lives), **given)


def total(handle: Any) -> tuple[float, int]:
    """The sum, the same everywhere, and how many lives its host has had."""
    vector, lives = handle.ask("total").result(LONG_S)
    assert (vector == vector[0]).all()
    return float(vector[0]), lives


def vector(x: float, numbers: int = MANY) -> Tensor:
    return torch.full((numbers,), x)


def test_a_killed_host_is_restored_with_its_state(backend: Processes) -> None:
    handle = ledger(backend)
    assert handle.tell("add", vector(1))
    assert total(handle) == (1, 1)
    [post] = backend.process_table()
    os.kill(post.pid, signal.SIGKILL)
    assert handle.tell("add", vector(2)), "it continues with the next host"
    assert total(handle) == (3, 2)


def test_a_tell_that_kills_a_host_is_lost_an_ask_is_repeated(backend: Processes) -> None:
    handle = ledger(backend, 8)
    assert handle.tell("add", vector(-1, 8))
    assert handle.tell("add", vector(5, 8))
    assert total(handle) == (5, 2)
    other = ledger(backend)
    assert other.ask("fragile", vector(1)).result(LONG_S).tolist() == vector(2).tolist()


def test_a_stopped_host_takes_up_to_its_depth_and_loses_none(backend: Processes) -> None:
    handle = ledger(backend, 8, depth=3)
    assert total(handle) == (0, 1)
    [post] = backend.process_table()
    os.kill(post.pid, signal.SIGSTOP)
    assert [handle.tell("add", vector(1, 8)) for _ in range(5)] == [True] * 3 + [False] * 2
    with pytest.raises(TimeoutError, match="ledger 0 has not answered"):
        handle.ask("total").result(0.1)
    os.kill(post.pid, signal.SIGCONT)
    assert total(handle) == (3, 1)


def test_a_worker_that_waited_for_room_has_it_after_a_kill(backend: Processes) -> None:
    handle = ledger(backend, 8, depth=2)
    assert total(handle) == (0, 1)
    [post] = backend.process_table()
    os.kill(post.pid, signal.SIGSTOP)
    assert [handle.tell("add", vector(1, 8)) for _ in range(3)] == [True, True, False]
    os.kill(post.pid, signal.SIGKILL)
    assert total(handle) == (2, 2), "what the queue held was not lost"
    assert [handle.tell("add", vector(1, 8)) for _ in range(2)] == [True] * 2
    assert total(handle) == (4, 2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_stops_in_mid_tell_does_no_harm(backend: Processes, number: int) -> None:
    """Half a message lies there; the others' go past it, and its successor's replaces it."""
    handle = ledger(backend)
    others = backend.allocate((1,), np.dtype(np.int64))

    def die_at_second_piece(piece: list[Any], along: list[Any]) -> None:
        if queued.PIECE.unpack(piece[0])[1]:
            os.kill(os.getpid(), number)
        queued.Handle._put(handle, piece, along)

    def work(rank: Rank) -> Iterator[None]:
        if rank.index == 0 and rank.incarnation == 0:
            handle._put = die_at_second_piece
        for _ in range(5):
            while not handle.tell("add", vector(1)):
                yield
            handle.ask("total").result(LONG_S)
            others[0] += rank.index
            yield

    running = backend.run([Job(work), Job(work)])
    faults = [next(running)]
    while others[0] < 5:
        faults.append(next(running))
    if number == signal.SIGSTOP:
        assert total(handle) == (5, 1)
        os.kill(backend.process_table()[0].pid, signal.SIGKILL)
    faults += list(running)
    [fault] = [each for each in faults if each]
    assert fault.process.index == 0
    assert total(handle) == (10, 1)


def test_an_answer_nobody_fetches_keeps_nobody_waiting(backend: Processes) -> None:
    handle = ledger(backend)
    asked = handle.ask("total")
    assert handle.tell("add", vector(1))
    assert total(handle) == (1, 1)
    assert asked.result(LONG_S)[0].tolist() == vector(0).tolist()
    del asked
    handle.ask("total")  # never looked at
    assert total(handle) == (1, 1)


def test_it_leaves_no_descriptor_behind() -> None:
    gc.collect()  # what other tests left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with closing(Processes()) as backend:
            handle = ledger(backend)
            assert handle.tell("add", vector(1))
            assert total(handle) == (1, 1)
        del backend, handle
    assert len(os.listdir("/proc/self/fd")) == before
