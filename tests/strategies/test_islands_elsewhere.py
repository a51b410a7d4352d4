"""Islands over two nodes, each with its own memory here: what is learned arrives once."""

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
from manyhands.config import registry
from manyhands.strategies import mirrors
from manyhands.strategies.mirrors import AwayMember, Mirrors
from manyhands.types import Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
INT64 = np.dtype(np.int64)
LONG_S = 120.0
LEARNERS, SIZE, AWAY = 4, 2, (2, 3)
FASTER: dict[str, dict[str, Any]] = {
    "hogwild_plus_plus": {"hold_updates": 1},
    "dogwild": {"chunks": 8},
}
ISLANDS = list(FASTER)


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    return optim.FlatModel({"a": nn.Linear(10, 6)})


def found(strategy: str, backend: Any, **optimizer: Any) -> Any:
    """The memory of one node."""
    module, model = registry.load("strategies", strategy), make_model()
    return module.make(
        module.Config(**FASTER[strategy]), backend=backend, vector=model.vector.zero_(),
        parts=model.parts, optimizer=optim.Config(**optimizer), learners=LEARNERS,
        island_size=SIZE,
    )  # fmt: skip


class TwoNodes:
    """The first island is on main's node, the second one on another."""

    def __init__(self, strategy: str, backend: Any, **optimizer: Any) -> None:
        self.main = found(strategy, backend, **optimizer)
        self.other = found(strategy, backend, **optimizer)
        self.mirrors = Mirrors(backend, self.main, make_model().vector.zero_())
        self.main.mirrors = self.other.mirrors = self.mirrors

    def join(self, model: optim.FlatModel, index: int) -> Any:
        if index in AWAY:
            return AwayMember(self.other, self.mirrors, model, index)
        return self.main.join(model, index)


class Learner:
    """Pushes the same gradient again and again."""

    def __init__(self, nodes: TwoNodes, index: int, gradient: float) -> None:
        self.model = make_model()
        self.gradient = torch.full_like(self.model.vector, gradient)
        self.parameters = nodes.join(self.model, index)

    def update(self, lr: float) -> None:
        version = self.parameters.pull(self.model)
        self.parameters.push(self.gradient.clone(), part="a", version=version, lr=lr)


@pytest.fixture(scope="module")
def backend() -> Iterator[Processes]:
    patience, imports = Patience(backoff_s=0.001, deaths=10**6), ("torch", mirrors.__name__)
    with closing(Processes(patience=patience, imports=imports)) as made:
        yield made


@pytest.mark.parametrize("strategy", ISLANDS)
def test_what_two_nodes_learned_is_added_up(
    strategy: str, backend: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "LEAST_S", 0.0)
    nodes = TwoNodes(strategy, backend, name="sgd", momentum=0.0)
    learners = [Learner(nodes, index, 1.0 + index) for index in range(LEARNERS)]
    for lr, updates in ((0.01, 40), (0.0, 400)):
        for _ in range(updates):
            for learner in learners:
                learner.update(lr)
            time.sleep(0.001)  # for answers
    for learner in learners:
        learner.parameters.keep()
    assert nodes.main.version() == LEARNERS * 440
    expected = -0.01 * 40 * sum(1.0 + index for index in range(LEARNERS))
    for vector in (*nodes.main.vectors, nodes.other.vectors[1]):
        torch.testing.assert_close(vector, torch.full_like(vector, expected), rtol=0.1, atol=0)


def test_an_exchange_that_comes_twice_counts_once(backend: Processes) -> None:
    nodes = TwoNodes("dogwild", backend, name="sgd")
    exchange = mirrors.Exchange(nodes.main, nodes.mirrors)
    base, number = exchange.take(1, 2)
    for _ in range(2):
        answer = exchange.exchange(base + 1, 1, 2, number + 1).clone()
        assert answer.tolist() == [1.0] * len(answer)
        assert torch.equal(nodes.main.vectors[1], answer)
    again, newer = exchange.take(1, 2)
    exchange.exchange(base + 5, 1, 2, number + 2)  # of the lost node that had the mirror
    assert torch.equal(nodes.main.vectors[1], again)
    assert newer >= number + 2


def test_a_checkpoint_has_the_statistics_of_both_nodes(backend: Processes) -> None:
    nodes = TwoNodes("hogwild_plus_plus", backend, name="adam")
    learner = Learner(nodes, 2, 1.0)
    for _ in range(5):
        learner.update(0.1)
    learner.parameters.keep()
    assert torch.equal(nodes.main.vectors[1], nodes.other.vectors[1])
    saved = nodes.main.optimizers(2)["a"].state()
    assert saved["count"] == 5
    for name, value in nodes.other.optimizers(2)["a"].state().items():
        np.testing.assert_array_equal(saved[name], value, err_msg=name)


@pytest.mark.parametrize("strategy", ISLANDS)
def test_a_kill_stops_no_other_node(strategy: str, backend: Processes) -> None:
    nodes = TwoNodes(strategy, backend, name="sgd", momentum=0.0)
    pushes, enough = backend.allocate((LEARNERS,), INT64), backend.allocate((1,), INT64)

    def work(rank: Rank) -> Iterator[Any]:
        torch.set_num_threads(1)
        learner = Learner(nodes, rank.index, 1.0)

        def keep() -> dict[str, Any]:
            learner.parameters.keep()
            return {}

        while not enough[0]:
            learner.update(1e-3)
            pushes[rank.index] += 1
            yield keep

    running, chance, causes = backend.run([Job(work)] * LEARNERS), random.Random(1), set[str]()
    for kill in range(4):
        before, deadline = pushes.copy(), time.monotonic() + LONG_S
        while not (pushes > before + 100).all():
            assert time.monotonic() < deadline, (kill, causes)
            causes |= {fault.cause for fault in [next(running)] if fault}
        there = [process for process in backend.process_table() if process.pid]
        away = [p.pid for p in there if p.role == "worker" and p.index in AWAY]
        host = [p.pid for p in there if p.role == "exchange"][-1:]
        os.kill(chance.choice(away + host), signal.SIGKILL)
    enough[0] = 1
    causes |= {fault.cause for fault in running if fault}
    assert causes <= {"killed by SIGKILL"}
    learned, most = nodes.main.newest(), 1e-3 * float(pushes.sum() + 4)
    assert torch.isfinite(learned).all()
    assert 0.2 * most < float(-learned.mean()) < 1.2 * most
