"""Real processes that are killed, stopped, hang and raise: what is promised then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from manyhands.backends.processes import Processes
from manyhands.backends.processes.supervisor import Patience
from manyhands.types import Failure, Fault, Job, Rank, Refusal
from support.watching import LONG_S, Running, look_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
HANG_S = 2.0


@pytest.fixture
def backend() -> Iterator[Processes]:
    with closing(Processes(patience=Patience(backoff_s=0.01, deaths=3))) as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[Processes]:
    """Believes soon that somebody hangs."""
    with closing(Processes(patience=Patience(hang_s=HANG_S, dump_s=3.0))) as made:
        yield made


def finish(running: Running) -> list[Fault]:
    return [fault for fault in running if fault is not None]


def quiet_for(running: Running, counter: Any, looks: int = 15) -> bool:
    before = counter.copy()
    for _ in range(looks):
        next(running)
    return bool((counter == before).all())


# --- Death ----------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_with_the_same_rank(backend: Processes) -> None:
    lives = backend.allocate((2, 2), INT64)  # [rank, incarnation]

    def work(rank: Rank) -> Iterator[None]:
        lives[rank.index, rank.incarnation] = os.getpid()
        while (rank.index == 1 and rank.incarnation == 0) or not lives[1, 1]:
            yield

    running = backend.run([Job(work, "actor"), Job(work, "learner")])
    look_until(running, lambda: bool(lives[:, 0].all()))
    before = {post.index: post for post in backend.process_table()}
    os.kill(before[1].pid, signal.SIGKILL)
    [fault] = finish(running)
    assert (fault.process, fault.cause) == (before[1], "killed by SIGKILL")
    assert fault.action == "restarted as incarnation 1"
    assert abs(fault.time_s - time.time()) < LONG_S
    assert lives[0].tolist() == [before[0].pid, 0], "the other one was left alone"
    assert lives[1, 1] not in (0, before[1].pid)


def test_a_replacement_begins_where_the_first_did(
    backend: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However an environment of main's has moved it since."""
    channel, go = backend.channel(2), backend.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        channel.put({"here": os.getcwd()})
        while not go[0]:
            yield
        if rank.incarnation == 0:
            os._exit(1)

    before, running = os.getcwd(), backend.run([Job(work)])
    next(running)
    monkeypatch.chdir(tmp_path)
    go[0] = 1
    assert len(finish(running)) == 1
    assert [item["here"] for item in channel.drain()] == [before, before]


def test_an_error_is_reported_with_where_it_was(backend: Processes) -> None:
    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.incarnation == 0:
            this_went_wrong = 1 // 0
            print(this_went_wrong)

    [fault] = finish(backend.run([Job(work)]))
    assert fault.cause == "raised ZeroDivisionError: integer division or modulo by zero"
    assert "this_went_wrong = 1 // 0" in fault.detail


def test_a_worker_that_dies_again_and_again_is_given_up(backend: Processes) -> None:
    lives = backend.allocate((2,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        lives[rank.index] += 1
        yield
        while rank.index == 0:
            yield
        raise ValueError("always")

    actions: list[str] = []
    died = "actor 1 died 3 times in a row: raised ValueError: always"
    with pytest.raises(Failure, match=died):  # noqa: PT012
        for fault in backend.run([Job(work), Job(work, "actor")]):
            actions += [fault.action] if fault else []
    assert actions == ["restarted as incarnation 1", "restarted as incarnation 2", "gave up"]
    assert lives.tolist() == [1, 3]
    assert backend.process_table() == []


def test_a_refusal_is_not_tried_again(backend: Processes) -> None:
    def work(_: Rank) -> Iterator[None]:
        raise Refusal("there is no such game", "install it")
        yield

    with pytest.raises(Failure, match="worker 0: there is no such game") as caught:
        finish(backend.run([Job(work)]))
    assert caught.value.remedy == "install it"


def test_a_replacement_of_a_worker_killed_while_parked_parks(
    backend: Processes,
) -> None:
    turns = backend.allocate((2,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        while turns[0] < 10**9:
            turns[rank.index] += 1
            yield

    running = backend.run([Job(work), Job(work)])
    look_until(running, lambda: bool(turns.min() > 0))
    assert backend.park(LONG_S) == frozenset()
    before, followers = turns.copy(), {post.index: post.pid for post in backend.process_table()}
    os.kill(followers[1], signal.SIGKILL)
    faults: list[Fault] = []
    while not faults:
        faults += [fault for fault in [next(running)] if fault]
    assert faults[0].process.pid == followers[1]
    faults = look_until(running, lambda: all(post.pid for post in backend.process_table()))
    assert faults == []
    assert backend.park(LONG_S) == frozenset()
    assert [post.incarnation for post in backend.process_table()] == [0, 1]
    assert (turns == before).all(), "nobody has moved"
    turns[0] = 10**9
    backend.unpark()
    assert finish(running) == []


def test_a_worker_that_does_not_park_is_named(backend: Processes) -> None:
    flags = backend.allocate((2,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        yield
        while rank.index == 1 and not flags[0]:
            flags[1] = 1
            time.sleep(0.01)
        while not flags[0]:
            yield

    running = backend.run([Job(work), Job(work)])
    look_until(running, lambda: bool(flags[1]))
    assert backend.park(0.5) >= {1}
    flags[0] = 1
    assert backend.park(LONG_S) == frozenset()
    backend.unpark()
    assert finish(running) == []


@pytest.mark.parametrize("killed", [False, True])
def test_a_worker_that_does_not_leave_is_killed_and_named(killed: bool, backend: Processes) -> None:
    stuck = backend.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        for _ in range(10):
            yield
        while rank.index == 1:
            yield
        stuck[0] = 1
        time.sleep(1000)

    running = backend.run([Job(work), Job(work)])
    look_until(running, lambda: stuck[0] == 1)
    next(running)  # main has seen that it had begun
    if killed:
        os.kill(backend.process_table()[0].pid, signal.SIGKILL)
    running.close()
    [fault] = backend.attend()
    assert (fault.process.role, fault.process.index) == ("worker", 0)
    assert fault.cause == (
        "killed by SIGKILL" if killed else f"did not stop within {Patience.grace_s:g} s"
    )
    assert fault.action == "none: it was stopping"


class Echo:
    def said(self) -> tuple[None, int]:
        return None, 1


def test_workers_that_wait_for_a_killed_host_can_be_stopped(backend: Processes) -> None:
    handle: Any = backend.host(Echo, name="echo")
    [host] = backend.process_table()
    turns = backend.allocate((2,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        while True:
            handle.ask("said").result(LONG_S)
            turns[rank.index] += 1
            yield

    running = backend.run([Job(work), Job(work)])
    look_until(running, lambda: bool(turns.min() > 5))
    os.kill(host.pid, signal.SIGKILL)
    running.close()
    faults, ends_s = backend.attend(), time.monotonic() + LONG_S
    while not faults and time.monotonic() < ends_s:  # the kernel may be slow to end it
        time.sleep(0.01)
        faults = backend.attend()
    assert [(fault.process.role, fault.cause) for fault in faults] == [
        ("echo", "killed by SIGKILL")
    ]


def test_exit_code_3_of_a_library_is_no_refusal_of_ours(backend: Processes) -> None:
    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.incarnation == 0:
            os._exit(3)

    [fault] = finish(backend.run([Job(work)]))
    assert fault.cause == "ended with exit code 3"
    assert fault.action == "restarted as incarnation 1"


def test_a_refusal_is_the_cause_that_is_noted(backend: Processes) -> None:
    def work(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        yield
        raise Failure("there is nothing to learn", "try something else")

    faults: list[Fault] = []
    running = backend.run([Job(work)])
    with pytest.raises(Failure, match="worker 0: there is nothing to learn"):
        faults.extend(fault for fault in running if fault)
    assert [(fault.cause, fault.action) for fault in faults] == [
        ("there is nothing to learn", "gave up")
    ]


IGNORED = """
import os, resource, signal, sys
from manyhands.backends.processes import Processes
from manyhands.types import Job
backend = Processes()
def work(rank):
    yield
    if rank.incarnation == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    yield
print([fault.cause for fault in backend.run([Job(work)]) if fault])
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256)
"""


def test_a_parent_that_ignored_sigchld_or_left_few_descriptors() -> None:
    shell = 'trap \'\' CHLD; ulimit -Sn 256; exec "$0" -c "$1"'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, IGNORED],
        capture_output=True, text=True, timeout=LONG_S, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["['killed by SIGKILL']", "True"]


# --- Hanging --------------------------------------------------------------------------------------


def test_a_worker_that_hangs_is_noticed_asked_and_replaced(hasty: Processes) -> None:
    def stuck_in_the_mud() -> None:
        time.sleep(1000)

    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.incarnation == 0:
            stuck_in_the_mud()

    [fault] = finish(hasty.run([Job(work)]))
    assert fault.cause == f"no progress for {HANG_S:g} s"
    assert "stuck_in_the_mud" in fault.detail
    assert fault.action == "restarted as incarnation 1"


def test_a_worker_that_waits_for_one_that_hangs_is_spared(hasty: Processes) -> None:
    lock, inside = hasty.lock(), hasty.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.index == 0 and rank.incarnation == 0:
            with lock:
                inside[0] = 1
                for _ in range(20):  # the others stand still before this one does
                    time.sleep(HANG_S / 200)
                    yield
                time.sleep(1000)
        while not inside[0]:
            yield
        with lock:
            inside[0] += 1

    faults = finish(hasty.run([Job(work)] * 3))
    assert [(fault.process.index, fault.process.incarnation) for fault in faults] == [(0, 0)]
    assert inside[0] == 4


# --- Locks ----------------------------------------------------------------------------------------


def test_a_killed_holder_frees_the_lock_and_the_next_is_told(backend: Processes) -> None:
    lock, told = backend.lock(), backend.allocate((3,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        yield
        while rank.index == 1 and told[0] == 0:
            yield
        with lock as orderly:
            told[0] += 1
            if rank.index == 0 and rank.incarnation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            told[1 if orderly else 2] += 1

    [fault] = finish(backend.run([Job(work), Job(work)]))
    assert fault.process.index == 0
    assert told.tolist() == [3, 1, 1], "one after the killed holder, one after an orderly one"


def test_what_a_killed_holder_had_forked_keeps_no_lock(backend: Processes) -> None:
    lock, told = backend.lock(), backend.allocate((2,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.incarnation == 0:
            child = os.fork()
            if not child:
                time.sleep(1000)
            told[0] = child
            with lock:
                os.kill(os.getpid(), signal.SIGKILL)
        with lock:
            told[1] = 1

    try:
        [fault] = finish(backend.run([Job(work)]))
        assert fault.cause == "killed by SIGKILL"
        assert told[1] == 1
    finally:
        if told[0]:
            os.kill(int(told[0]), signal.SIGKILL)


def test_others_wait_for_a_stopped_holder_until_it_is_killed(backend: Processes) -> None:
    lock, inside = backend.lock(), backend.allocate((2,), INT64)
    stopped = backend.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[None]:
        yield
        while rank.index == 0 and rank.incarnation == 0:
            with lock:
                stopped[0] = os.getpid()
                os.kill(os.getpid(), signal.SIGSTOP)
        while not stopped[0]:
            yield
        inside[0] += rank.index
        while inside[1] < 1000:
            with lock:
                inside[1] += rank.index
            yield

    running = backend.run([Job(work), Job(work)])
    look_until(running, lambda: bool(inside[0]))
    assert quiet_for(running, inside), "the other one waits"
    assert inside[1] == 0
    os.kill(int(stopped[0]), signal.SIGKILL)
    [fault] = finish(running)
    assert fault.cause == "killed by SIGKILL"
    assert inside[1] == 1000


# --- Channels and hosted objects ------------------------------------------------------------------


def test_a_writer_killed_in_mid_put_corrupts_nothing(backend: Processes) -> None:
    channel = backend.channel(8)

    def work(rank: Rank) -> Iterator[None]:
        channel.put({"life": rank.incarnation, "n": 0})
        if rank.incarnation == 0:
            from manyhands.backends.processes import channel as module

            module.HEAD = Deadly()  # type: ignore[assignment]
        channel.put({"life": rank.incarnation, "n": 1})
        yield

    class Deadly:
        """Writes half a record."""

        size = 8

        def pack_into(self, place: Any, at: int, *_: int) -> None:
            place[at : at + 40] = b"x" * 40
            os.kill(os.getpid(), signal.SIGKILL)

    assert len(finish(backend.run([Job(work)]))) == 1
    kept = [(item["life"], item["n"]) for item in channel.drain()]
    assert kept == [(0, 0), (1, 0), (1, 1)]


class Ledger:
    """Keeps its sums in shared memory, so they outlive its process."""

    def __init__(self, kept: Any, lives: Any) -> None:
        self.kept, self.lives = kept, lives
        lives[0] += 1

    def add(self, vector: Any) -> None:
        if vector[0] < 0 and self.lives[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.kept += vector

    def total(self) -> Any:
        return self.kept

    def fragile(self) -> int:
        if self.lives[0] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return int(self.lives[0])

    def slow(self) -> None:
        time.sleep(1000)


def ledger(backend: Processes, **options: Any) -> tuple[Any, Any]:
    import torch

    kept, lives = backend.share(torch.zeros(2)), backend.allocate((1,), INT64)
    return backend.host(lambda: Ledger(kept, lives), name="ledger", **options), lives


def vector(x: float) -> Any:
    import torch

    return torch.full((2,), x)


def test_a_killed_host_is_restored_with_its_state(backend: Processes) -> None:
    handle, lives = ledger(backend)
    assert handle.tell("add", vector(1))
    assert handle.ask("total").result(LONG_S).tolist() == [1, 1]
    [post] = backend.process_table()
    os.kill(post.pid, signal.SIGKILL)
    assert handle.tell("add", vector(2)), "what is told meanwhile waits"
    assert handle.ask("total").result(LONG_S).tolist() == [3, 3]
    assert lives[0] == 2
    [again] = backend.process_table()
    assert (again.role, again.incarnation, again.pid == post.pid) == ("ledger", 1, False)


def test_the_next_host_answers_an_ask_but_a_deadly_tell_is_lost(
    backend: Processes,
) -> None:
    handle, lives = ledger(backend)
    assert handle.tell("add", vector(-1))
    assert handle.tell("add", vector(5))
    assert handle.ask("total").result(LONG_S).tolist() == [5, 5]
    assert lives[0] == 2
    other, lives = ledger(backend)
    assert other.ask("fragile").result(LONG_S) == 2


def test_a_stopped_host_takes_up_to_its_depth_and_loses_none(backend: Processes) -> None:
    handle, _ = ledger(backend, depth=3)
    handle.ask("total").result(LONG_S)
    [post] = backend.process_table()
    os.kill(post.pid, signal.SIGSTOP)
    assert [handle.tell("add", vector(1)) for _ in range(5)] == [True] * 3 + [False] * 2
    with pytest.raises(TimeoutError, match="ledger 0 has not answered"):
        handle.ask("total").result(0.1)
    os.kill(post.pid, signal.SIGCONT)
    assert handle.ask("total").result(LONG_S).tolist() == [3, 3]


def test_a_client_killed_in_mid_tell_does_no_harm(backend: Processes) -> None:
    handle, lives = ledger(backend)

    def work(rank: Rank) -> Iterator[None]:
        while not handle.tell("add", vector(1)):
            yield
        if rank.index == 0 and rank.incarnation == 0:
            handle._mailbox.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        while not handle.tell("add", vector(10)):
            yield
        yield

    [fault] = finish(backend.run([Job(work), Job(work)]))
    assert fault.process.index == 0
    assert handle.ask("total").result(LONG_S).tolist() == [3 + 20] * 2
    assert lives[0] == 1


def test_an_ask_is_answered_after_earlier_tells_of_others(backend: Processes) -> None:
    handle, _ = ledger(backend)
    handle.ask("total").result(LONG_S)
    [post] = backend.process_table()
    os.kill(post.pid, signal.SIGSTOP)  # so that all of it waits at once

    def work(_: Rank) -> Iterator[None]:
        assert handle.tell("add", vector(1))
        assert handle.tell("add", vector(2))
        yield

    assert finish(backend.run([Job(work)])) == []
    asked = handle.ask("total")
    os.kill(post.pid, signal.SIGCONT)
    assert asked.result(LONG_S).tolist() == [3, 3]


def test_a_host_that_hangs_is_noticed_only_when_there_is_work(
    hasty: Processes,
) -> None:
    handle, lives = ledger(hasty)
    handle.ask("total").result(LONG_S)

    def work(_: Rank) -> Iterator[None]:
        until = time.monotonic() + HANG_S + 1
        while time.monotonic() < until:
            time.sleep(0.01)
            yield

    assert finish(hasty.run([Job(work)])) == [], "an idle host is well"
    handle.tell("slow")
    deadline = time.monotonic() + LONG_S
    while lives[0] == 1 and time.monotonic() < deadline:
        with suppress(TimeoutError):
            handle.ask("total").result(0.2)
    assert lives[0] == 2
    assert handle.ask("total").result(LONG_S).tolist() == [0, 0]


def test_a_worker_told_to_stop_is_not_restarted(backend: Processes) -> None:
    begun = backend.allocate((1,), INT64)

    def work(_: Rank) -> Iterator[None]:
        begun[0] += 1
        try:
            while True:
                yield
        finally:
            raise ValueError("while leaving")

    running = backend.run([Job(work)])
    look_until(running, lambda: bool(begun[0]))
    backend.stop()
    [fault] = finish(running)
    assert (fault.cause, begun[0]) == ("raised ValueError: while leaving", 1)


def test_to_leave_by_exit_is_a_fault(backend: Processes) -> None:
    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.incarnation == 0:
            sys.exit(0)

    [fault] = finish(backend.run([Job(work)]))
    assert fault.cause == "raised SystemExit: 0"


def test_leaving_before_the_work_is_done_is_a_fault(backend: Processes) -> None:
    def work(rank: Rank) -> Iterator[None]:
        yield
        if rank.incarnation == 0:
            os._exit(0)
        yield

    [fault] = finish(backend.run([Job(work)]))
    assert fault.cause == "ended with exit code 0 before its work was done"
    assert fault.action == "restarted as incarnation 1"


def test_a_host_that_leaves_is_replaced(backend: Processes) -> None:
    class Leaver:
        def __init__(self, lives: Any) -> None:
            self.lives = lives
            lives[0] += 1

        def leave(self) -> int:
            if self.lives[0] == 1:
                os._exit(0)
            return int(self.lives[0])

    lives = backend.allocate((1,), INT64)
    handle = backend.host(lambda: Leaver(lives))
    assert handle.ask("leave").result(LONG_S) == 2
