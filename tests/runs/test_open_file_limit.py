"""At the limit of open files a run continues, and says what is the matter."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.backends.processes import Processes
from manyhands.runs import checkpoint
from manyhands.runs.faults import FaultLog
from manyhands.runs.metrics import MetricsFile
from manyhands.types import Job, Rank
from support.command_line import SECTIONS

TOO_MANY = "could not be started: Too many open files"


@contextmanager
def no_more_files() -> Iterator[None]:
    """None can be opened in this process; those that are open stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def work(rank: Rank) -> Iterator[None]:
    yield
    if rank.incarnation == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_replaced_once_descriptors_are_free() -> None:
    with closing(Processes()) as backend:
        running, told = backend.run([Job(work)]), list[tuple[str, str]]()
        next(running)
        with no_more_files():
            while len(told) < 2:
                told += [(fault.cause, fault.action) for fault in [next(running)] if fault]
        told += [(fault.cause, fault.action) for fault in running if fault]
    assert told == [
        ("killed by SIGKILL", "restarted as incarnation 1"), (TOO_MANY, "tried again")
    ]  # fmt: skip


def test_a_first_worker_that_cannot_start_is_refused() -> None:
    with closing(Processes()) as backend:
        running = backend.run([Job(work)])
        with no_more_files(), pytest.raises(mh.Failure, match=f"worker 0 {TOO_MANY}") as caught:
            next(running)
    assert "ulimit -n" in caught.value.remedy


def test_too_many_open_files_are_not_called_a_full_disk(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    metrics.close()
    metrics.write(1, 1.0, {"charts/x": 1.0})
    with no_more_files():
        with pytest.raises(mh.Failure, match="Too many open files") as of_metrics:
            metrics.flush()
        with pytest.raises(mh.Failure, match="Too many open files") as of_a_checkpoint:
            checkpoint.save(tmp_path / "checkpoints", 1, weights={}, state={})
    for caught in (of_metrics, of_a_checkpoint):
        assert "ulimit -n" in caught.value.remedy
        assert "space" not in caught.value.remedy


@pytest.mark.parametrize("strategy", ["lock", "gossip"])
@pytest.mark.usefixtures("_looks_often")
def test_a_run_with_a_worker_killed_at_the_limit_continues(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(FaultLog, "note", lambda _, fault, **__: told.append(fault.cause))
    options: dict[str, Any] = {**SECTIONS, "workers": 2, "threads": 1, "quiet": True}
    run = mh.Run("cartpole", strategy=strategy, steps=10**9, out=tmp_path / "run", **options)
    looks = iter(run)
    while run.workers.updates < 50:
        next(looks)
    with no_more_files():
        os.kill(run.workers.process_table()[0]["pid"], signal.SIGKILL)
        while len(told) < 2:
            next(looks)
        before = run.workers.updates
        while run.workers.updates == before:  # the other continues
            next(looks)
    while not all(row["pid"] for row in run.workers.process_table()):
        next(looks)
    looks.close()  # type: ignore[attr-defined]
    assert told[:2] == ["killed by SIGKILL", TOO_MANY]
