"""Groups of real processes whose members are killed at every stage of an average, and at random."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor

from manyhands.backends.processes import Processes
from manyhands.backends.processes.supervisor import Patience
from manyhands.types import Fault, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
NUMBERS = 1000
LONG_S = 120.0
STAGES = ("before", "while sending", "once sent", "while reducing", "late", "never")
ANSWERED = (False, False, True, True, True, True)


@pytest.fixture
def backend() -> Iterator[Processes]:
    with closing(Processes(patience=Patience(backoff_s=0.001, deaths=10**6))) as made:
        yield made


def die(*_: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def vector_of(member: int, life: int, turn: int) -> Tensor:
    seed = (member * 1000 + life) * 100_000 + turn
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(seed))


def average(numbers: dict[int, tuple[float, ...]]) -> Tensor:
    vectors = [vector_of(m, int(life), int(turn)) for m, (life, turn) in sorted(numbers.items())]
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    return total / len(vectors)


def doomed(group: Any, stage: str) -> None:
    """From here on it dies there."""

    slot_of = group.slot

    def send_half() -> None:
        _, slot = slot_of()
        slot[: NUMBERS // 2] = np.nan
        die()

    def reduce_half(now: int, _: list[int], member: int) -> None:
        where = group._slice(now, member, NUMBERS)
        group._board.mean[now % 2, where.start : where.stop - 100] = np.nan
        die()

    if stage == "before":
        die()
    changes: dict[str, tuple[str, Callable[..., Any]]] = {
        "while sending": ("slot", send_half),
        "once sent": ("_ring", die),
        "while reducing": ("_average", reduce_half),
        "late": ("_read", die),
    }
    if stage in changes:
        name, change = changes[stage]
        setattr(group, name, change)


def test_after_any_death_the_others_hold_the_average_of_answers(
    backend: Processes,
) -> None:
    """Each life of one rank ends at another stage, after two rounds in which it took part."""
    group, victim, healthy_turns = backend.group(3, NUMBERS), 1, 2
    heard = backend.allocate((3, len(STAGES), healthy_turns + 1), INT64)  # by rank and life
    caught_up = backend.allocate((len(STAGES),), INT64)

    def work(rank: Rank) -> Iterator[None]:
        def catch_up() -> None:
            caught_up[rank.incarnation] += 1

        follows = group.join(rank.index, catch_up)
        assert follows == (rank.incarnation > 0)
        turn = -1 if follows else 0  # nothing is taken from it in its first round
        while not heard[:, -1, -1].any():
            if rank.index == victim and turn == healthy_turns:
                doomed(group, STAGES[rank.incarnation])
            given = vector_of(rank.index, rank.incarnation, turn % 1000)
            mean, numbers = group.reduce(given, rank.incarnation, turn % 1000)
            assert mean is not None
            assert torch.equal(mean, average(numbers))
            assert (rank.index in numbers) == (turn >= 0)
            if victim in numbers:
                life, its_turn = map(int, numbers[victim])
                heard[rank.index, life, its_turn] += 1
                if (life, its_turn) == (len(STAGES) - 1, healthy_turns):
                    return
            turn += 1
            yield

    faults = [fault for fault in backend.run([Job(work)] * 3) if fault]
    assert [(f.process.index, f.cause) for f in faults] == [(victim, "killed by SIGKILL")] * 5
    assert caught_up.tolist() == [0, 1, 1, 1, 1, 1]
    for other in (0, 2):
        assert (heard[other, :, :-1] == 1).all()
        assert heard[other, :, -1].tolist() == list(map(int, ANSWERED))


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_random_kills_leave_no_endless_wait(backend: Processes, kills: int) -> None:
    group, more = backend.group(3, NUMBERS), 20
    rounds = backend.allocate((3,), INT64)
    enough = backend.allocate((1,), INT64)
    enough[0] = 2**60

    def work(rank: Rank) -> Iterator[None]:
        turn = -1 if group.join(rank.index, lambda: None) else 0
        while rounds[rank.index] < enough[0]:
            given = vector_of(rank.index, rank.incarnation, turn % 1000)
            mean, numbers = group.reduce(given, rank.incarnation, turn % 1000)
            assert mean is None or torch.equal(mean, average(numbers))
            turn += 1
            rounds[rank.index] += 1
            yield

    running, chance = backend.run([Job(work)] * 3), random.Random(1)
    faults: list[Fault] = []
    for n in range(kills):
        before, deadline = rounds.copy(), time.monotonic() + LONG_S
        while not (rounds > before + 3).sum() >= 2:  # the third may not be back yet
            assert time.monotonic() < deadline, (n, faults)
            faults += [fault for fault in [next(running)] if fault]
        time.sleep(chance.random() * 0.01)
        living = [post.pid for post in backend.process_table() if post.pid]
        os.kill(chance.choice(living), signal.SIGKILL)
    enough[0] = rounds.max() + more
    faults += [fault for fault in running if fault]
    assert {fault.cause for fault in faults} == {"killed by SIGKILL"}
    assert len(faults) == kills
    assert (rounds >= enough[0]).all()


@pytest.mark.parametrize("starts", [False, True])
def test_waiting_for_a_worker_that_continues_is_not_hanging(starts: bool) -> None:
    """A member that takes many turns between two rounds, or long to start."""
    hang_s = 2.0
    with closing(Processes(patience=Patience(hang_s=hang_s))) as backend:
        group, enough = backend.group(2, 8), 3 * hang_s

        def work(rank: Rank) -> Iterator[None]:
            if rank.index == 1 and starts:
                time.sleep(enough)
            group.join(rank.index, lambda: None)
            begun_s = time.monotonic()
            while rank.index == 1 and not starts and time.monotonic() < begun_s + enough:
                time.sleep(0.05)
                yield
            yield
            group.reduce(torch.ones(8))
            yield

        assert [fault for fault in backend.run([Job(work)] * 2) if fault] == []
