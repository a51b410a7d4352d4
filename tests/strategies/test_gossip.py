"""Gossip: an average conserves the mean, also when a learner is killed in it; which may meet."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.backends.processes.supervisor import Patience
from manyhands.strategies import gossip
from manyhands.types import Fault, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
LONG_S = 120.0


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    return optim.FlatModel({"a": nn.Linear(20, 20)})


def found(backend: Any, learners: int, topology: str = "ring", **optimizer: Any) -> gossip.Gossip:
    model = make_model()
    made = gossip.make(
        gossip.Config(topology=topology),
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=optim.Config(**optimizer),
        learners=learners,
    )
    generator = torch.Generator().manual_seed(1)
    for first, *_ in made._vectors:
        first.copy_(torch.randn(model.vector.numel(), generator=generator))
    return made


@settings(deadline=None)  # the first of torch's sums takes long
@given(
    learners=st.integers(2, 6),
    meetings=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30),
)
def test_an_average_changes_two_replicas_and_conserves_the_mean(
    learners: int, meetings: list[tuple[int, int]]
) -> None:
    shared = found(InProcess(), learners)
    mean, distance = shared.newest(), shared.consensus_distance()
    for one, other in meetings:
        one, other = one % learners, other % learners
        if one == other:
            continue
        before = shared.copies()
        shared.meet(one, other)
        after = shared.copies()
        assert torch.equal(after[one], after[other])
        torch.testing.assert_close(after[one], before[[one, other]].mean(0), rtol=0, atol=1e-6)
        rest = [i for i in range(learners) if i not in (one, other)]
        assert torch.equal(after[rest], before[rest])
        assert shared.consensus_distance() <= distance * (1 + 1e-5)
        distance = shared.consensus_distance()
    torch.testing.assert_close(shared.newest(), mean, rtol=0, atol=1e-6)


def pair() -> tuple[gossip.Gossip, list[optim.FlatModel], list[gossip.Replica]]:
    shared = found(InProcess(), 2, name="sgd")
    models = [make_model(), make_model()]
    return shared, models, [shared.join(model, i) for i, model in enumerate(models)]


def test_staleness_counts_averages_between_pull_and_push() -> None:
    shared, models, (one, other) = pair()
    zeros = torch.zeros(models[0].vector.numel())
    version = one.pull(models[0])
    for _ in range(3):
        other.push(zeros, part="a", version=other.pull(models[1]), lr=0.1)
    one.push(zeros, part="a", version=version, lr=0.1)
    assert shared.ledger.staleness()[0] == 3 / 4
    assert one.pull(models[0]) == 1
    assert other.pull(models[1]) == 3
    assert torch.equal(models[0].vector, models[1].vector)


def test_averages_of_others_do_not_disturb_a_computation() -> None:
    shared, models, (one, other) = pair()
    zeros = torch.zeros(models[0].vector.numel())
    version = one.pull(models[0])
    seen = models[0].vector.clone()
    for _ in range(5):
        other.push(zeros, part="a", version=other.pull(models[1]), lr=0.1)
        assert torch.equal(models[0].vector, seen)
        assert torch.equal(next(models[0].modules["a"].parameters()).flatten(), seen[:400])
    assert not torch.equal(shared.copies()[0], seen)
    one.push(zeros, part="a", version=version, lr=0.1)
    one.pull(models[0])
    assert torch.equal(models[0].vector, shared.copies()[0])


def test_each_replica_comes_back_from_a_checkpoint() -> None:
    shared = found(InProcess(), 3)
    model = make_model()
    shared.join(model, 1).push(torch.ones(model.vector.numel()), part="a", version=0, lr=0.1)
    state, mean = shared.state(), shared.newest()
    again = found(InProcess(), 3)
    again.restore(mean, state)
    assert torch.equal(again.copies(), shared.copies())
    own, its = (one["own"]["gossip"]["consensus_distance"] for one in (state, again.state()))
    assert own == its > 0
    assert again.join(model, 1).pull(model) == 1
    fewer = found(InProcess(), 2)
    fewer.restore(mean, state)
    assert all(torch.equal(replica, mean) for replica in fewer.copies())


def test_partners_differ_by_run_learner_and_incarnation() -> None:
    def met(shared: gossip.Gossip, index: int) -> list[int]:
        chance = shared.chance(index)
        return [chance.randrange(100) for _ in range(20)]

    shared, model = found(InProcess(), 3), make_model()
    first = met(shared, 0)
    assert met(shared, 0) == first, "a run repeats"
    assert met(shared, 1) != first
    shared.join(model, 0).push(torch.ones(model.vector.numel()), part="a", version=0, lr=0.1)
    assert met(shared, 0) != first, "its replacement does not meet the same again"
    vector = make_model().vector + 1.0
    other = gossip.make(
        gossip.Config(), backend=InProcess(), vector=vector, parts=model.parts,
        optimizer=optim.Config(), learners=3,
    )  # fmt: skip
    assert met(other, 0) != first, "another run"


def test_no_process_writes_to_what_another_computes_with() -> None:
    pushes_each = 200
    with closing(Processes()) as backend:
        shared = found(backend, 3, "complete", name="sgd")
        there, disturbed = backend.allocate((3,), INT64), backend.allocate((3,), INT64)

        def work(rank: Rank) -> Iterator[None]:
            model = make_model()
            parameters = shared.join(model, rank.index)
            there[rank.index] = 1
            while not there.all():  # or the first is done before the last has started
                yield
            chance = torch.Generator().manual_seed(rank.index)
            for _ in range(pushes_each):
                version = parameters.pull(model)
                seen = model.vector.clone()
                time.sleep(0.002)  # for several others to average with it
                disturbed[rank.index] += not torch.equal(model.vector, seen)
                noise = torch.randn(model.vector.numel(), generator=chance)
                parameters.push(noise, part="a", version=version, lr=0.1)
                yield

        assert not [fault for fault in backend.run([Job(work)] * 3) if fault]
        averaged_meanwhile = shared.ledger.staleness()[0] * 3 * pushes_each
        assert averaged_meanwhile > 0
        assert not disturbed.any()


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_a_kill_leaves_no_half_average_and_no_endless_wait(
    kills: int,
) -> None:
    """With a rate of zero nothing but averages changes the replicas: their mean must not move."""
    with closing(Processes(patience=Patience(backoff_s=0.001, deaths=10**6))) as backend:
        shared = found(backend, 3, "complete", name="sgd")
        pushes = backend.allocate((3,), INT64)
        enough = backend.allocate((1,), INT64)
        enough[0] = 2**60
        mean = shared.newest()

        def work(rank: Rank) -> Iterator[None]:
            model = make_model()
            parameters = shared.join(model, rank.index)
            zeros = torch.zeros(model.vector.numel())
            while pushes[rank.index] < enough[0]:
                version = parameters.pull(model)
                parameters.push(zeros, part="a", version=version, lr=0.0)
                pushes[rank.index] += 1
                yield

        running, chance = backend.run([Job(work)] * 3), random.Random(1)
        faults: list[Fault] = []
        for n in range(kills):
            before, deadline = pushes.copy(), time.monotonic() + LONG_S
            while not (pushes > before + 3).sum() >= 2:
                assert time.monotonic() < deadline, (n, faults)
                faults += [fault for fault in [next(running)] if fault]
            time.sleep(chance.random() * 0.01)
            living = [post.pid for post in backend.process_table() if post.pid]
            os.kill(chance.choice(living), signal.SIGKILL)
        enough[0] = pushes.max() + 20
        faults += [fault for fault in running if fault]
        assert {fault.cause for fault in faults} == {"killed by SIGKILL"}
        torch.testing.assert_close(shared.newest(), mean, rtol=0, atol=1e-5)
        assert shared.consensus_distance() < 1.0
