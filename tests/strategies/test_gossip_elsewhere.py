"""Gossip over two nodes, each with its own memory here: the mean is conserved, whatever dies."""

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
from torch import nn

from manyhands import optim
from manyhands.backends.processes import Processes
from manyhands.backends.processes.supervisor import Patience
from manyhands.strategies import Layout, gossip
from manyhands.strategies.gossip import elsewhere
from manyhands.strategies.gossip.elsewhere import AwayReplica, Elsewhere
from manyhands.strategies.gossip.replicas import ABSENT, NO_PARTNER
from manyhands.types import Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
LONG_S = 120.0
LEARNERS, AWAY = 4, (2, 3)


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    return optim.FlatModel({"a": nn.Linear(20, 20)})


def found(backend: Any, **optimizer: Any) -> gossip.Gossip:
    """The memory of one node. All replicas differ."""
    model = make_model()
    made = gossip.make(
        gossip.Config(),
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=optim.Config(**optimizer),
        learners=LEARNERS,
    )
    generator = torch.Generator().manual_seed(1)
    for first, *_ in made._vectors:
        first.copy_(torch.randn(model.vector.numel(), generator=generator))
    return made


class TwoNodes:
    """Learners 0 and 1 are on main's node, 2 and 3 on another one."""

    def __init__(self, backend: Any, **optimizer: Any) -> None:
        self.main, self.other = found(backend, **optimizer), found(backend, **optimizer)
        self.other.held[:] = ABSENT
        model = make_model()
        layout = Layout(optim.Config(**optimizer), model.vector, model.parts)
        self.elsewhere = Elsewhere(backend, self.main, layout)

    def join(self, index: int) -> Any:
        if index in AWAY:
            return AwayReplica(self.other, index, self.elsewhere)
        self.main.settle(index)
        return self.main.join(make_model(), index)


class Learner:
    def __init__(self, nodes: TwoNodes, index: int) -> None:
        self.model, self.parameters = make_model(), nodes.join(index)

    def update(self, gradient: float = 0.0) -> None:
        version = self.parameters.pull(self.model)
        gradients = torch.full_like(self.model.vector, gradient)
        self.parameters.push(gradients, part="a", version=version, lr=0.1)


@pytest.fixture(scope="module")
def backend() -> Iterator[Processes]:
    patience, imports = Patience(backoff_s=0.001, deaths=10**6), ("torch", elsewhere.__name__)
    with closing(Processes(patience=patience, imports=imports)) as made:
        yield made


def test_replicas_of_two_nodes_approach_each_other(
    backend: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "LEAST_S", 0.0)
    nodes = TwoNodes(backend, name="sgd")
    mean, distance = nodes.main.newest(), nodes.main.consensus_distance()
    learners = [Learner(nodes, index) for index in range(LEARNERS)]
    chance = random.Random(1)
    for _ in range(400):
        chance.choice(learners).update()
        time.sleep(0.001)  # for answers
    for learner in learners:
        learner.parameters.keep()
    torch.testing.assert_close(nodes.main.newest(), mean, rtol=0, atol=1e-5)
    assert nodes.main.consensus_distance() < 0.05 * distance
    for learner in learners:
        learner.parameters.pull(learner.model)
    for replica, index in zip(nodes.main.copies()[2:], AWAY, strict=True):
        torch.testing.assert_close(learners[index].model.vector, replica, rtol=0, atol=1e-5)


def test_all_gradients_of_both_nodes_are_in_the_mean(backend: Processes) -> None:
    nodes = TwoNodes(backend, name="sgd", momentum=0.0)
    mean, each = nodes.main.newest(), 40
    learners = [Learner(nodes, index) for index in range(LEARNERS)]
    for _ in range(each):
        for learner in learners:
            learner.update(1.0)
    for learner in learners:
        learner.parameters.keep()
    torch.testing.assert_close(nodes.main.newest(), mean - each * 0.1, rtol=0, atol=1e-4)


def test_an_exchange_that_comes_twice_counts_once(backend: Processes) -> None:
    shared = found(backend, name="sgd")
    vector, number = shared.take(2)
    sent = vector + 1
    for again in range(2):
        answer = shared.exchange(sent, 2, 1, number + 1)
        copies = shared.copies()
        assert torch.equal(answer, copies[2]), again
        assert torch.equal(copies[1], copies[2])
        shared.meet(1, 0)  # the copy of the last answer stays
        shared.meet(1, 2)
        before = shared.copies()
        assert torch.equal(shared.exchange(sent + 9, 2, 1, number + 1), answer)
        assert torch.equal(shared.copies(), before)
        shared.exchange(answer, 2, NO_PARTNER, number + 2)
        sent, number = shared.copies()[2] + 1, number + 2


def test_what_a_lost_node_sent_late_counts_no_more(backend: Processes) -> None:
    shared = found(backend, name="sgd")
    vector, number = shared.take(2)
    again, newer = shared.take(2)  # its learner is on another node now
    before = shared.copies()
    shared.exchange(vector + 5, 2, NO_PARTNER, number + 1)
    assert torch.equal(shared.copies(), before)
    shared.exchange(again + 1, 2, NO_PARTNER, newer + 1)
    torch.testing.assert_close(shared.copies()[2], before[2] + 1)
    shared.settle(2)  # and now on main's
    before = shared.copies()
    shared.exchange(vector + 5, 2, NO_PARTNER, newer + 2)
    assert torch.equal(shared.copies(), before)


def test_a_checkpoint_has_the_optimizers_of_both_nodes(backend: Processes) -> None:
    nodes = TwoNodes(backend, name="adam")
    learner = Learner(nodes, 2)
    for _ in range(5):
        learner.update(1.0)
    learner.parameters.keep()
    saved = nodes.main.state()["own"]["gossip"]["optimizers"]["2"]["a"]
    here = nodes.other.optimizers(2)[0]["a"].state()
    for name, value in here.items():
        np.testing.assert_array_equal(saved[name], value, err_msg=name)
    nodes.other.held[:] = ABSENT  # as on a new node
    learner = Learner(nodes, 2)
    learner.parameters.pull(learner.model)
    assert torch.equal(learner.model.vector, nodes.main.copies()[2])


def test_a_kill_on_any_node_counts_nothing_twice(backend: Processes) -> None:
    """With a rate of zero nothing but averages changes the replicas: their mean must not move."""
    nodes = TwoNodes(backend, name="sgd")
    pushes, enough = backend.allocate((LEARNERS,), INT64), backend.allocate((1,), INT64)
    enough[0] = 2**60
    mean, distance = nodes.main.newest(), nodes.main.consensus_distance()

    def work(rank: Rank) -> Iterator[Any]:
        learner = Learner(nodes, rank.index)

        def keep() -> dict[str, Any]:
            learner.parameters.keep()
            return {}

        while pushes[rank.index] < enough[0]:
            learner.update()
            pushes[rank.index] += 1
            yield keep

    running, chance, causes = backend.run([Job(work)] * LEARNERS), random.Random(1), set[str]()
    for kill in range(8):
        before, deadline = pushes.copy(), time.monotonic() + LONG_S
        while not (pushes > before + 3).sum() >= 3:
            assert time.monotonic() < deadline, (kill, causes)
            causes |= {fault.cause for fault in [next(running)] if fault}
        time.sleep(chance.random() * 0.01)
        living = [
            p.pid
            for p in backend.process_table()
            if p.pid and p.index in AWAY and p.role == "worker"
        ]
        host = [p.pid for p in backend.process_table() if p.pid and p.role == "exchange"][-1:]
        os.kill(chance.choice(living + host), signal.SIGKILL)
    enough[0] = pushes.max() + 100
    causes |= {fault.cause for fault in running if fault}
    assert causes == {"killed by SIGKILL"}
    torch.testing.assert_close(nodes.main.newest(), mean, rtol=0, atol=1e-5)
    assert nodes.main.consensus_distance() < 0.1 * distance
