"""All-reduce: equal replicas, clipping after the average, parts, and a member that comes back."""

from __future__ import annotations

import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.backends.processes.supervisor import Patience
from manyhands.runs import checkpoint
from manyhands.strategies import allreduce
from manyhands.types import Average, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    return optim.FlatModel({"a": nn.Linear(30, 20), "b": nn.Linear(7, 40)})


def found(backend: Any, learners: int, **optimizer: Any) -> allreduce.AllReduce:
    model = make_model()
    return allreduce.make(
        allreduce.Config(),
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=optim.Config(**optimizer),
        learners=learners,
    )


def gradient(index: int, turn: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * index + turn))


def test_each_part_is_averaged_over_its_pushes_and_clipped() -> None:
    backend = InProcess(1)
    shared = found(backend, 3, name="sgd", clip_norm=2.0)
    before = shared.newest()
    parts = ["aab", "bab"]  # of the three, in two rounds

    def work(rank: Rank) -> Iterator[None]:
        model = make_model()
        parameters = shared.join(model, rank.index)
        assert parameters.clips
        for turn, pushed in enumerate(parts):
            part = pushed[rank.index]
            where = model.parts[part]
            size = where.stop - where.start
            version = parameters.pull(model)
            assert version == turn
            parameters.push(
                gradient(rank.index, turn, size), part=part, version=version, lr=0.5 + rank.index
            )
            yield

    list(backend.run([Job(work)] * 3))
    model = make_model()
    wanted = before.clone()
    for turn, pushed in enumerate(parts):
        for part in "ab":
            where = model.parts[part]
            members = [i for i in range(3) if pushed[i] == part]
            mean = torch.stack([gradient(i, turn, where.stop - where.start) for i in members]).sum(
                0
            )
            mean = mean / len(members)
            mean = mean * min(1.0, 2.0 / float(mean.norm()))
            wanted[where] -= (0.5 + members[0]) * mean
    torch.testing.assert_close(shared.newest(), wanted)
    assert torch.equal(shared.replicas[0], shared.replicas[1])
    assert torch.equal(shared.replicas[0], shared.replicas[2])
    assert shared.state()["version"] == 2


def test_what_is_finite_but_not_its_sum_is_never_applied() -> None:
    backend = InProcess(1)
    shared = found(backend, 2)
    before = shared.newest()

    def work(rank: Rank) -> Iterator[None]:
        model = make_model()
        parameters = shared.join(model, rank.index)
        size = model.parts["a"].stop
        parameters.push(torch.full((size,), 3e38), part="a", version=0, lr=0.1)
        yield

    list(backend.run([Job(work)] * 2))
    assert torch.equal(shared.newest(), before)
    assert shared.ledger.staleness()[2] == 2


def test_replicas_are_equal_bit_for_bit_also_after_a_kill() -> None:
    """Its follower comes in with a peer's parameters and optimizer state."""
    with closing(Processes(patience=Patience(backoff_s=0.001, deaths=10**6))) as backend:
        shared = found(backend, 3, clip_norm=1.0)
        sums = backend.allocate((3, 100_000), INT64)  # of every replica, by version
        lives = backend.allocate((3,), INT64)
        most = backend.allocate((1,), INT64)
        most[0] = 2**60

        def work(rank: Rank) -> Iterator[None]:
            model = make_model()
            parameters = shared.join(model, rank.index)
            yield
            while (version := parameters.pull(model)) < most[0]:
                for part, where in model.parts.items():
                    size = where.stop - where.start
                    pushed = gradient(rank.index, version, size)
                    parameters.push(pushed, part=part, version=version, lr=0.01)
                    now = parameters.pull(model)
                    row = shared.replicas[rank.index].numpy().tobytes()
                    sums[rank.index, now] = zlib.crc32(row) + 1
                lives[rank.index] = rank.incarnation
                time.sleep(0.001)  # or there are more versions than places for them
                yield

        running = backend.run([Job(work)] * 3)
        while sums[:, 5].min() == 0:
            next(running)
        [pid] = [post.pid for post in backend.process_table() if post.index == 1]
        os.kill(pid, signal.SIGKILL)
        faults = []
        while not (
            lives[1] == 1
            and sums[1].copy().nonzero()[0].max() > sums[0].copy().nonzero()[0].max() - 3
        ):
            faults += [fault for fault in [next(running)] if fault]
        most[0] = sums.copy().nonzero()[1].max() + 10
        faults += [fault for fault in running if fault]
    assert [fault.cause for fault in faults] == ["killed by SIGKILL"]
    there = sums > 0
    assert (there.sum(0) == 3).sum() > 10
    assert (there.sum(0) == 2).sum() > 0, "they continued without it"
    for version in np.flatnonzero(there.any(0)):
        assert len(set(sums[there[:, version], version].tolist())) == 1, version


@pytest.mark.parametrize("recipe", ["sync", "sync-a2c"])
def test_runs_of_many_processes_repeat_bit_for_bit(recipe: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"dqn": {"warmup_steps": 100, "batch_size": 16}}
    own = own if recipe == "sync" else {}

    def train(name: str) -> mh.Run:
        return mh.train(
            "cartpole", recipe=recipe, workers=2, steps=1210, out=tmp_path / name, threads=1,
            network={"hidden": (16,)}, evaluation={"period_steps": 0}, envs_per_worker=4,
            **own,
        )  # fmt: skip

    one, same = train("one"), train("same")
    mine, theirs = (checkpoint.newest(run.path / "checkpoints").weights for run in (one, same))
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    assert one.summary["agent_steps"] == same.summary["agent_steps"] == 1212
    assert one.summary["updates"] == same.summary["updates"] > 10


def test_a_lone_learner_keeps_a_spare_and_never_takes_an_older(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two, the second died at version 100 and the first continues alone."""
    monkeypatch.setattr(allreduce, "TRIES", 3)
    shared = found(InProcess(), 2, name="sgd")
    shared.stamps[:2] = 2 * 600, 2 * 100
    shared.replicas[0].fill_(6.0)
    shared.replicas[1].fill_(1.0)
    shared.keep_spare(0)
    shared.stamps[0] += 1  # killed in the middle of its step
    shared.replicas[0].fill_(float("nan"))
    row, stamp = shared.copy_newest()
    assert stamp == 2 * 600
    assert bool((row == 6.0).all())
    shared.stamps[0], shared.stamps[2] = 2 * 601 + 1, 2 * 600  # had it kept none of 601
    with pytest.raises(mh.Failure, match="every replica was lost"):
        shared.newest()


def test_a_spare_costs_nothing_while_another_knows_as_much() -> None:
    shared = found(InProcess(), 2, name="sgd")
    shared.stamps[:2] = 8, 8
    shared.keep_spare(0)
    assert shared.stamps.tolist() == [8, 8, 0]


def test_what_a_newcomer_gave_up_is_dropped_and_not_applied() -> None:
    shared = found(InProcess(), 1, name="sgd")
    shared.stamps[:] = 2 * 40
    model = make_model()
    hold = shared.join(model, 0)

    class Others:
        def reduce(self, *_: Any) -> Any:
            return Average(torch.zeros(shared.numbers), {1: (0.0, 0.1)})

    shared.group = Others()  # type: ignore[assignment]
    size = model.vector[model.parts["a"]].numel()
    hold.push(torch.ones(size), part="a", version=0, lr=0.1)
    assert shared.ledger.staleness() == (0.0, 0.0, 1)
    assert shared.version() == 41
