"""What every backend promises of tables, notices, live vectors and streams: who writes what."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pytest

from manyhands.backends.inprocess import InProcess
from manyhands.backends.inprocess.late import MOST_READS
from manyhands.config import registry
from manyhands.types import Job, Rank, State
from support import on_ray

cloudpickle.register_pickle_by_value(sys.modules[__name__])
INT = np.dtype(np.int64)
ROUNDS = 60


@pytest.fixture(params=on_ray.BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    with on_ray.made(request) as made:
        yield made


def run(backend: Any, *works: Callable[[Rank], Iterator[Any]]) -> None:
    assert [fault for fault in backend.run([Job(work) for work in works]) if fault] == []


def test_all_see_what_each_row_s_writer_wrote(backend: Any) -> None:
    table, seen = backend.table(3, 2, INT), backend.allocate((3, 3), INT)

    def work(rank: Rank) -> Iterator[None]:
        row = table.row(rank.index)
        for number in range(1, ROUNDS + 1):
            row[0] = row[1] = number
            own = table.rows()[rank.index]
            assert own.tolist() == [number, number]  # its own row is current
            yield
        while (table.rows()[:, 0] < ROUNDS).any():  # late, but in the end
            yield
        seen[rank.index] = table.rows()[:, 1]

    run(backend, work, work, work)
    backend.look()
    assert (seen == ROUNDS).all()
    assert (table.rows() == ROUNDS).all()


def test_a_budget_is_used_up_and_hardly_exceeded(backend: Any) -> None:
    most, each = 200, 3
    table = backend.table(2, 2, INT)
    budget = backend.budget(table, 1, most)

    def work(rank: Rank) -> Iterator[None]:
        row = table.row(rank.index)
        while table.rows()[:, 1].sum() < most:
            if budget.has_rest():
                row[1] += each
            yield

    run(backend, work, work)
    backend.look()
    assert most <= table.rows()[:, 1].sum() < most + 2 * each


def test_rows_never_go_back(backend: Any) -> None:
    table, worst = backend.table(2, 1, INT), backend.allocate((1,), INT)

    def write(rank: Rank) -> Iterator[None]:
        for number in range(1, ROUNDS + 1):
            table.row(rank.index)[0] = number
            yield

    def watch(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        before = 0
        while before < ROUNDS:
            now = int(table.rows()[0, 0])
            worst[0] += now < before
            before = now
            yield

    run(backend, write, watch)
    assert worst[0] == 0


def test_main_fills_a_table_before_the_run(backend: Any) -> None:
    table, found = backend.table(2, 1, INT), backend.allocate((2,), INT)
    for row in range(2):
        table.row(row)[0] = 7

    def work(rank: Rank) -> Iterator[None]:
        found[rank.index] = table.rows()[:, 0].sum()
        yield

    run(backend, work, work)
    assert found.tolist() == [14, 14]


def test_a_notice_is_read_whole(backend: Any) -> None:
    notice, wrong = backend.notice(np.zeros(1000), np.zeros(2)), backend.allocate((1,), INT)

    def post(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        for number in range(1, ROUNDS + 1):
            notice.post(np.full(1000, number), np.full(2, number))
            yield

    def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        large, small, number = np.zeros(1000), np.zeros(2), 0
        while number < ROUNDS:
            assert notice.number() >= number
            number = notice.read(large, small)
            wrong[0] += not ((large == number).all() and (small == number).all())
            yield

    run(backend, post, read, read)
    backend.look()
    assert (wrong[0], notice.number()) == (0, ROUNDS)


def test_a_reader_that_comes_late_has_the_newest(backend: Any) -> None:
    notice, found = backend.notice(np.zeros(3)), backend.allocate((2,), INT)
    done = backend.table(1, 1, INT)

    def post(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        for number in (1, 2, 3):
            notice.post(np.full(3, number))
            yield
        done.row(0)[0] = 1

    def join(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        while not done.rows()[0, 0]:
            yield
        into = np.zeros(3)
        found[:] = notice.read(into), into[0]

    run(backend, post, join)
    assert found.tolist() == [3, 3]


def test_a_live_vector_is_read_as_it_is(backend: Any) -> None:
    counts, found = backend.table(2, 1, INT), backend.allocate((4,), np.dtype(np.float64))
    live = backend.live(np.arange(4.0), counts, 1)

    def write(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        count = counts.row(1)
        for _ in range(5):
            live.vector[:] += 1
            count[0] += 1
            yield

    def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        while found[0] < 5:
            counted = counts.rows()[1, 0]
            live.read(found)
            assert counted <= found[0]
            yield

    run(backend, write, read)
    assert found.tolist() == [5, 6, 7, 8]


def test_a_count_is_never_ahead_of_its_rows(backend: Any) -> None:
    stream = backend.stream({"value": ((2, ROUNDS), INT)}, writers=2, fields=1)
    counters, wrong = backend.table(2, 1, INT), backend.allocate((1,), INT)

    def write(rank: Rank) -> Iterator[None]:
        head, own = stream.heads.row(rank.index), counters.row(rank.index)
        for number in range(ROUNDS):
            stream.arrays["value"][rank.index, number] = number + 1
            head[0] = number + 1
            own[0] = number + 1
            yield

    def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        counted = 0
        while counted < 2 * ROUNDS:
            counts = counters.rows()[:, 0].copy()
            heads = stream.heads.rows()[:, 0].copy()
            counted = int(counts.sum())
            wrong[0] += bool((heads < counts).any())
            for writer, head in enumerate(heads.tolist()):
                there = stream.arrays["value"][writer, :head]
                wrong[0] += there.tolist() != list(range(1, head + 1))
            yield

    run(backend, write, write, read)
    assert wrong[0] == 0


def test_room_comes_back_through_the_tails(backend: Any) -> None:
    slots = 2
    stream = backend.stream({"value": ((1, slots), INT)}, writers=1, fields=1)
    taken = backend.allocate((ROUNDS,), INT)

    def write(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        head = stream.heads.row(0)
        while head[0] < ROUNDS:
            if head[0] - stream.tails.rows()[0, 0] < slots:
                stream.arrays["value"][0, head[0] % slots] = head[0] + 1
                head[0] += 1
            yield

    def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        tail = stream.tails.row(0)
        while tail[0] < ROUNDS:
            if stream.heads.rows()[0, 0] > tail[0]:
                taken[tail[0]] = stream.arrays["value"][0, tail[0] % slots]
                tail[0] += 1
            yield

    run(backend, write, read)
    assert taken.tolist() == list(range(1, ROUNDS + 1))


def test_a_stream_has_room_where_it_is_read(backend: Any) -> None:
    stream = backend.stream({"value": ((1, 4), INT)}, writers=1, fields=1)
    stream.heads.row(0)[0] = 100
    assert stream.has_room(0)


def test_host_takes_a_rank_to_be_near(backend: Any) -> None:
    assert backend.host(dict, name="near", near=0).ask("__len__").result(60.0) == 0


# --- In one process, other workers' rows are late -------------------------------------------------


def test_in_process_others_are_late_and_the_seed_says_when() -> None:
    def seen(seed: int) -> list[int]:
        backend, found = InProcess(seed), list[int]()
        table = backend.table(1, 1, INT)

        def write(rank: Rank) -> Iterator[None]:  # noqa: ARG001
            for number in range(1, 200):
                table.row(0)[0] = number
                yield

        def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
            for _ in range(200):
                found.append(int(table.rows()[0, 0]))
                yield

        run(backend, write, read)
        return found

    one = seen(1)
    assert one == seen(1) != seen(2)
    assert any(before == after for before, after in pairwise(one))  # a write not seen yet


def test_a_late_reader_is_brought_up_to_date_soon() -> None:
    backend, behind = InProcess(5), list[int]()
    table = backend.table(1, 1, INT)

    def write(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        for number in range(1, 100):
            table.row(0)[0] = number
            yield

    def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        for _ in range(100):
            reads = [int(table.rows()[0, 0]) for _ in range(MOST_READS + 1)]
            behind.append(int(table.row(0)[0]) - reads[-1])
            yield

    run(backend, write, read)
    assert set(behind) == {0}


# --- States ---------------------------------------------------------------------------------------


def counting(rank: Rank) -> Iterator[Callable[[], State]]:
    turns = 0

    def state() -> State:
        return {"turns": turns, "rank": rank.index, "large": np.full(300_000, rank.index)}

    while True:
        turns += 1
        yield state


def test_parked_workers_give_their_states(backend: Any) -> None:
    running = backend.run([Job(counting), Job(counting)])
    until = time.monotonic() + 60
    for _ in running:
        assert backend.park(60.0) == frozenset()
        one, again = backend.collect(60.0), backend.collect(60.0)
        if len(one) == 2:
            break
        assert time.monotonic() < until
        backend.unpark()
    assert [state["rank"] for _, state in sorted(one.items())] == [0, 1]
    assert [state["turns"] for state in one.values()] == [s["turns"] for s in again.values()]
    assert all((state["large"] == rank).all() for rank, state in one.items())
    backend.stop()
    running.close()


def test_a_worker_that_has_ended_leaves_its_state(backend: Any) -> None:
    def short(rank: Rank) -> Iterator[Callable[[], State]]:
        yield lambda: {"last": 10 + rank.index}

    running = backend.run([Job(short), Job(counting)])
    found: dict[int, State] = {}
    until = time.monotonic() + 60
    for _ in running:
        assert backend.park(60.0) == frozenset()
        found = backend.collect(60.0)
        backend.unpark()
        if len(found) == 2:
            break
        assert time.monotonic() < until
    assert found[0] == {"last": 10}
    running.close()


def test_no_worker_is_parked_inside_a_group(backend: Any) -> None:
    """Each parks after the same number of averages, so a checkpoint has no half turn."""
    import torch

    group = backend.group(2, 4)

    def work(rank: Rank) -> Iterator[Callable[[], State]]:
        group.join(rank.index, lambda: None)
        rounds = 0
        while True:
            for _ in range(1 + rank.index):  # two averages to a turn, or one to each of two turns
                group.reduce(torch.full((4,), float(rounds)))
                rounds += 1
            yield partial(dict, rounds=rounds)

    running = backend.run([Job(work), Job(work)])
    parks, until = 0, time.monotonic() + 60
    for _ in running:
        assert backend.park(30.0) == frozenset()
        states = backend.collect(30.0)
        if len(states) == 2:
            assert states[0]["rounds"] == states[1]["rounds"]
            parks += 1
        backend.unpark()
        if parks == 10:
            break
        assert time.monotonic() < until
    running.close()


# --- Lost readers and writers (real processes) ----------------------------------------------------


def with_faults(backend: Any, *works: Callable[[Rank], Iterator[Any]]) -> list[str]:
    return [fault.cause for fault in backend.run([Job(work) for work in works]) if fault]


@pytest.fixture
def processes() -> Iterator[Any]:
    with closing(registry.load("backends", "processes").make(3)) as made:
        yield made


def test_a_lost_reader_stops_no_writer(processes: Any) -> None:
    notice, found = processes.notice(np.zeros(2)), processes.allocate((2,), INT)
    stream = processes.stream({"value": ((4,), INT)}, writers=1, fields=1)

    def write(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        head = stream.heads.row(0)
        while found[0] == 0:
            notice.post(np.full(2, head[0] + 1))
            stream.arrays["value"][head[0] % 4] = head[0] + 1
            head[0] += 1
            yield

    def read(rank: Rank) -> Iterator[None]:
        while not stream.heads.rows()[0, 0]:
            yield
        if rank.incarnation == 0:
            os._exit(9)
        into = np.zeros(2)
        found[1] = notice.read(into)
        found[0] = into[0]
        yield

    assert with_faults(processes, write, read) == ["ended with exit code 9"]
    assert found[0] == found[1] > 0


def test_a_lost_writer_leaves_the_newest_whole(processes: Any) -> None:
    notice, table = processes.notice(np.zeros(1000)), processes.table(1, 1, INT)

    def write(rank: Rank) -> Iterator[None]:
        row = table.row(0)
        for _ in range(5):
            row[0] += 1
            notice.post(np.full(1000, row[0]))
            yield
        if rank.incarnation == 0:
            os._exit(9)

    assert with_faults(processes, write) == ["ended with exit code 9"]
    into = np.zeros(1000)
    assert (notice.read(into), int(table.rows()[0, 0])) == (10, 10)
    assert (into == 10).all()


def test_a_dead_worker_leaves_no_old_state(processes: Any) -> None:
    """It died after one checkpoint and before the next: its state of then is not its state."""

    def dies(rank: Rank) -> Iterator[Callable[[], State]]:
        while True:
            yield partial(dict, pid=os.getpid(), incarnation=rank.incarnation)

    running = processes.run([Job(dies), Job(dies)])
    found: dict[int, State] = {}
    until = time.monotonic() + 60
    for _ in running:
        assert processes.park(60.0) == frozenset()
        found = processes.collect(60.0)
        processes.unpark()
        if len(found) == 2:
            break
        assert time.monotonic() < until
    os.kill(found[0]["pid"], signal.SIGKILL)
    processes.park(60.0)
    again = processes.collect(60.0)
    assert 0 not in again or again[0]["incarnation"] == 1
    assert again[1]["incarnation"] == 0
    running.close()
