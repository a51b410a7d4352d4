"""The processes backend from outside: what it leaves behind, what it refuses, users' scripts."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from manyhands.backends.processes import Processes, segment
from manyhands.types import BadRequest, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
SRC = Path(__file__).parents[2] / "src"
LONG_S = 60.0


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:manyhands")


def left() -> tuple[int, int, set[str]]:
    return len(psutil.Process().children(recursive=True)), mapped(), descriptors()


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + LONG_S
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def endless(_: Rank) -> Iterator[None]:
    while True:
        time.sleep(0.001)
        yield


# --- Nothing is left ------------------------------------------------------------------------------


class Quiet:
    def ping(self) -> int:
        return 1


@pytest.mark.parametrize("how", ["closed", "error", "deleted"])
def test_nothing_is_left(how: str) -> None:
    before = left()

    def use() -> None:
        backend = Processes()
        shared, lock, channel = backend.allocate((10,), INT64), backend.lock(), backend.channel(4)

        def work(rank: Rank) -> Iterator[None]:
            with lock:
                shared[rank.index] = 1
            channel.put({})
            yield from endless(rank)

        running = backend.run([Job(work), Job(work)])
        while not shared[:2].all():
            next(running)
        assert len(psutil.Process().children()) == 3  # two workers, and the zygote
        if how == "error":
            raise KeyboardInterrupt
        if how == "closed":
            running.close()
            backend.close()

    with suppress(KeyboardInterrupt):
        use()
    assert left() == before


def test_what_cannot_be_sent_is_refused_and_leaves_nothing() -> None:
    before = left()
    kept: Any = threading.Lock()

    def use() -> None:
        with closing(Processes()) as backend:
            backend.host(Quiet)
            with pytest.raises(BadRequest, match=r"actor 1 cannot be sent .* cannot pickle"):
                list(backend.run([Job(endless), Job(lambda _: iter(kept), "actor")]))

    use()
    assert left() == before


SCRIPT = """
import os, signal, time, sys
from manyhands.backends.processes import Processes
from manyhands.types import Job

print("started", flush=True)  # a script that is run again by its workers would say so again
backend = Processes()
turns = backend.allocate((2,), "int64")
class Kept:
    def ping(self): return 7
host = backend.host(Kept, numbers=8)
def endless(rank):
    while True:
        turns[rank.index] += 1
        yield
jobs = [Job(lambda rank: endless(rank)), Job(endless)]
running = backend.run(jobs)
while turns.min() == 0:
    next(running)
print("ping", host.ask("ping").result(60), flush=True)
print("pids", *(process.pid for process in backend.process_table()), flush=True)
sys.stdin.readline()
{end}
"""
WAITS = "while True: next(running)"


def script(tmp_path: Path, end: str) -> subprocess.Popen[str]:
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(SCRIPT).format(end=end))
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    return subprocess.Popen(
        [sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        preexec_fn=heeds_interrupts,
    )  # fmt: skip


def heeds_interrupts() -> None:
    """Also where these tests run in the background of a shell, which ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def pids_of(started: subprocess.Popen[str]) -> list[int]:
    assert started.stdout is not None
    assert started.stdin is not None
    assert [started.stdout.readline() for _ in range(2)] == ["started\n", "ping 7\n"]
    word, *numbers = started.stdout.readline().split()
    assert word == "pids"
    pids = [int(number) for number in numbers]
    assert len(set(pids)) == 3
    assert all(alive(pid) for pid in pids)
    started.stdin.write("continue\n")
    started.stdin.flush()
    return pids


@pytest.mark.parametrize("way", ["SIGKILL", "ctrl-c", "ends", "raises"])
def test_no_process_outlives_main(tmp_path: Path, way: str) -> None:
    """A script as a user writes it: no guard, a lambda, nothing closed."""
    end = {"ends": "", "raises": "raise ValueError('mine')"}.get(way, WAITS)
    with script(tmp_path, end) as started:
        try:
            pids = pids_of(started)
            if way == "SIGKILL":
                started.kill()
            elif way == "ctrl-c":
                os.killpg(started.pid, signal.SIGINT)
            assert gone(pids)
            out, err = started.communicate(timeout=LONG_S)
        finally:
            started.kill()
    assert out == ""
    last = err.strip().splitlines()[-1:] or [""]
    assert last[0].startswith({"raises": "ValueError", "ctrl-c": "KeyboardInterrupt"}.get(way, ""))
    assert "child" not in err, "a worker that is ended ends silently"


def test_two_runs_at_once_know_nothing_of_each_other() -> None:
    with closing(Processes()) as one, closing(Processes()) as two:
        counters = [backend.allocate((2,), INT64) for backend in (one, two)]

        def job(counter: Any, step: int) -> Job:
            def work(rank: Rank) -> Iterator[None]:
                for _ in range(200):
                    counter[rank.index] += step
                    yield

            return Job(work)

        runs = [
            backend.run([job(counter, step)] * 2)
            for backend, counter, step in zip((one, two), counters, (1, 1000), strict=True)
        ]
        while runs:
            runs = [run for run in runs if next(run, run) is not run]
        assert [counter.tolist() for counter in counters] == [[200] * 2, [200_000] * 2]


# --- Memory ---------------------------------------------------------------------------------------


def test_more_memory_than_there_is_is_refused_in_a_sentence() -> None:
    before = descriptors()
    with closing(Processes()) as backend:
        with pytest.raises(BadRequest, match=r"10,000.0 GB of shared memory are needed, .* free"):
            backend.allocate((10**13,), np.dtype(np.uint8))
        with pytest.raises(BadRequest, match="shared memory are needed"):
            backend.host(Quiet, numbers=10**12)
        with pytest.raises(BadRequest, match="shared memory are needed"):
            backend.channel(10**9)
    del backend
    gc.collect()
    assert descriptors() == before


def test_what_the_kernel_does_not_grant_is_refused_at_once() -> None:
    """A limit the kernel keeps, as that of a container: no SIGBUS on the first write."""
    code = """
        import resource
        from manyhands.backends.processes import Processes
        from manyhands.types import BadRequest
        backend = Processes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        backend.allocate((1000,), "float32")
        try:
            backend.allocate((1 << 20,), "float32")
        except BadRequest as refused:
            print(refused.what)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    assert done.stdout.startswith("4.2 MB of shared memory are needed")


def test_memory_is_reserved_at_once_and_freed_with_its_last_view() -> None:
    array = segment.allocate((1 << 20,), np.float32)
    found = segment.segment_at(array.ctypes.data)
    assert found is not None
    assert os.fstat(found.descriptor).st_blocks * 512 >= 4 << 20
    number, view = found.descriptor, array[10:20]
    del array, found
    gc.collect()
    os.fstat(number)  # still there, as a view is
    del view
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


# --- What a worker finds --------------------------------------------------------------------------


def test_threads_niceness_and_signals_are_set_for_a_worker() -> None:
    with closing(Processes()) as backend:
        channel = backend.channel(4)

        def work(rank: Rank) -> Iterator[None]:
            import torch

            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
            variables = [os.environ[name] for name in names]
            nicer = os.nice(0) - before
            channel.put({"found": [rank.index, nicer, torch.get_num_threads(), *variables]})
            yield

        before = os.nice(0)
        jobs = [Job(work, threads=1), Job(work, threads=2, nice=3)]
        assert [fault for fault in backend.run(jobs) if fault] == []
        found = sorted(item["found"] for item in channel.drain())
        assert found == [[0, 0, 1, "1", "1", "1"], [1, 3, 2, "2", "2", "2"]]


def test_a_fresh_interpreter_finds_its_parents_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    with closing(Processes()) as backend:
        channel = backend.channel(4)

        def work(_: Rank) -> Iterator[None]:
            import only_here  # type: ignore[import-not-found]

            channel.put({"answer": only_here.answer, "heavy": "torch" in sys.modules})
            yield

        assert [fault for fault in backend.run([Job(work)]) if fault] == []
        assert channel.drain() == [{"answer": 42, "heavy": False}]


def test_an_item_too_large_for_a_channel_is_an_error() -> None:
    with closing(Processes()) as backend, pytest.raises(ValueError, match="a channel takes"):
        backend.channel(2).put({"x": "y" * 5000})


def test_small_arrays_lie_side_by_side_and_are_apart() -> None:
    before = descriptors()
    arrays = [segment.allocate((7,), np.uint8) for _ in range(200)]
    assert len(descriptors() - before) <= 4
    for number, array in enumerate(arrays):
        assert not array.any()
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))
    del arrays, array
    gc.collect()
    assert descriptors() == before
