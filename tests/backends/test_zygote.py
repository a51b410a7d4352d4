"""The process that forks the others: what they share, and what happens when it is killed."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from manyhands.backends.processes import Processes, spawn
from manyhands.backends.processes.supervisor import Patience
from manyhands.types import Fault, Job, Rank
from support.watching import look_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
PATIENCE = Patience(backoff_s=0.01)


def finish(running: Iterator[Fault | None]) -> list[Fault]:
    return [fault for fault in running if fault is not None]


def zygote_of(backend: Processes) -> int:
    return backend._supervisor.zygote.pid


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> str:
    """A module that the zygote finds; returns its name."""
    (folder / "large_library.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "large_library"


def endless(pids: Any, over: Any) -> Job:
    def work(rank: Rank) -> Iterator[None]:
        pids[rank.index, rank.incarnation] = os.getpid()
        while not over[0]:
            yield

    return Job(work)


def test_modules_are_imported_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a worker that replaces a killed one."""
    content = f"open({str(tmp_path / 'imported')!r}, 'a').write('once ')"
    name = module(tmp_path, monkeypatch, content)
    with closing(Processes(patience=PATIENCE, imports=[name])) as backend:
        found = backend.channel(8)

        def work(rank: Rank) -> Iterator[None]:
            found.put({"has": name in sys.modules, "parent": os.getppid()})
            yield
            if rank.incarnation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield

        assert len(finish(backend.run([Job(work)] * 2))) == 2
        assert found.drain() == [{"has": True, "parent": os.getpid()}] * 4
    assert (tmp_path / "imported").read_text() == "once "


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_outlive_the_zygote_which_is_replaced(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "FORK_S", 1.0)
    with closing(Processes(patience=PATIENCE)) as backend:
        pids, over = backend.allocate((2, 2), INT64), backend.allocate((1,), INT64)
        running = backend.run([endless(pids, over)] * 2)
        look_until(running, lambda: bool(pids[:, 0].all()))
        before = zygote_of(backend)
        os.kill(before, how)
        os.kill(int(pids[1, 0]), signal.SIGKILL)
        faults = look_until(running, lambda: bool(pids[1, 1]))
        assert [fault.cause for fault in faults] == ["killed by SIGKILL"]
        assert psutil.pid_exists(int(pids[0, 0]))
        assert zygote_of(backend) not in (0, before)
        assert not psutil.pid_exists(before)
        over[0] = 1
        assert finish(running) == []


@pytest.mark.parametrize(
    "leaves", ["import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()",
               "kept = open('/dev/null')"]
)  # fmt: skip
def test_an_import_that_leaves_a_thread_or_file_is_not_shared(
    leaves: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, monkeypatch, leaves)
    with closing(Processes(imports=[name])) as backend:
        found = backend.channel(2)

        def work(_: Rank) -> Iterator[None]:
            found.put({"has": name in sys.modules, "tasks": len(os.listdir("/proc/self/task"))})
            yield

        assert finish(backend.run([Job(work)])) == []
        assert found.drain() == [{"has": False, "tasks": 1}]


def test_forked_processes_do_not_draw_the_same_numbers() -> None:
    with closing(Processes()) as backend:
        found = backend.channel(4)

        def work(_: Rank) -> Iterator[None]:
            found.put({"drawn": [float(np.random.rand()), random.random()]})  # noqa: NPY002
            yield

        assert finish(backend.run([Job(work)] * 3)) == []
        drawn = [number for item in found.drain() for number in item["drawn"]]
        assert len(set(drawn)) == 6


def test_main_adopts_only_while_it_starts_a_process() -> None:
    prctl, found = ctypes.CDLL(None).prctl, ctypes.c_int(9)
    with closing(Processes()) as backend:
        assert finish(backend.run([Job(lambda _: iter([None]))])) == []
        prctl(spawn.PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
        assert found.value == 0


def test_a_worker_prints_where_main_prints_now(tmp_path: Path) -> None:
    """Standard output may be another than when the zygote was started."""

    def work(_: Rank) -> Iterator[None]:
        os.write(1, b"here")
        yield

    with closing(Processes()) as backend, (tmp_path / "out").open("wb") as file:
        backend._supervisor.zygote.begin()
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            assert finish(backend.run([Job(work)])) == []
        finally:
            os.dup2(before, 1)
            os.close(before)
    assert (tmp_path / "out").read_text() == "here"


def test_more_descriptors_than_one_message_holds() -> None:
    with closing(Processes()) as backend:
        size = 70_000  # each in its own segment
        arrays = [backend.allocate((size,), np.dtype(np.uint8)) for _ in range(300)]

        def work(_: Rank) -> Iterator[None]:
            for number, array in enumerate(arrays):
                array[:] = number % 251
            yield

        assert finish(backend.run([Job(work)])) == []
        assert all((array == number % 251).all() for number, array in enumerate(arrays))
