"""Proximal: six agents on a ring find the central optimum, also after one is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.backends.processes.supervisor import Patience
from manyhands.maths import graphs
from manyhands.maths.regularisers import prox
from manyhands.strategies import proximal
from manyhands.types import Fault, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
AGENTS, SIZE, RATE, STRENGTH, ROUNDS = 6, 10, 0.4, 0.2, 80
INT64 = np.dtype(np.int64)
CLOSE, FAR = 1e-6, 1e-2
FORMS = ["prox-ed", "p2d2"]


def problem() -> tuple[Tensor, Tensor]:
    """For each agent a quadratic loss (w - b) A (w - b) / 2 of its own."""
    generator = torch.Generator().manual_seed(3)
    roots = torch.randn(AGENTS, SIZE, SIZE, generator=generator, dtype=torch.float64)
    curved = roots @ roots.transpose(1, 2) / SIZE / 2 + 0.5 * torch.eye(SIZE, dtype=torch.float64)
    return curved, torch.randn(AGENTS, SIZE, generator=generator, dtype=torch.float64)


CURVED, BEST_OF_EACH = problem()


def slope(agent: int, w: Tensor) -> Tensor:
    return CURVED[agent] @ (w.double() - BEST_OF_EACH[agent])


def central(regulariser: str, agents: range = range(AGENTS)) -> Tensor:
    """The optimum of the mean loss and the regulariser, by proximal gradient descent."""
    w = torch.zeros(SIZE, dtype=torch.float64)
    for _ in range(2000):
        mean = torch.stack([slope(agent, w) for agent in agents]).mean(0)
        w = prox(regulariser, w - RATE * mean, RATE * STRENGTH)
    return w


def make_model() -> optim.FlatModel:
    model = optim.FlatModel({"a": nn.Linear(SIZE - 1, 1)})
    model.vector.zero_()
    return model


def found(backend: Any, regulariser: str = "none", form: str = "prox-ed", n: int = AGENTS) -> Any:
    model = make_model()
    return proximal.make(
        proximal.Config(form=form, regulariser=regulariser, strength=STRENGTH),
        backend=backend, vector=model.vector, parts=model.parts,
        optimizer=optim.Config(name="sgd", momentum=0.0), learners=n,
    )  # fmt: skip


def update(hold: Any, model: optim.FlatModel, agent: int) -> None:
    version = hold.pull(model)
    hold.push(slope(agent, model.vector).float(), part="a", version=version, lr=RATE)


def solve(backend: Any, shared: Any, rounds: int = ROUNDS) -> Any:
    def work(rank: Rank) -> Iterator[None]:
        torch.set_num_threads(1)
        model = make_model()
        hold = shared.join(model, rank.index)
        for _ in range(rounds):
            update(hold, model, rank.index)
            yield

    assert not any(backend.run([Job(work)] * AGENTS))
    return shared.copies()


def away(vectors: Tensor, optimum: Tensor) -> float:
    return float((vectors.double() - optimum).abs().max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("regulariser", ["none", "l2", "l1"])
def test_agents_on_a_ring_find_the_central_optimum(regulariser: str, form: str) -> None:
    backend = InProcess(1)
    shared = found(backend, regulariser, form)
    optimum = central(regulariser)
    assert min(away(optimum, best) for best in BEST_OF_EACH) > 0.5, "none can find it alone"
    assert ((optimum == 0).sum() > 0) == (regulariser == "l1")
    assert away(solve(backend, shared), optimum) < CLOSE
    assert shared.version() == ROUNDS
    assert shared.ledger.staleness() == (0.0, 0.0, 0)


@pytest.mark.parametrize("regulariser", ["l2", "l1"])
def test_real_processes_find_it_too(regulariser: str) -> None:
    with closing(Processes()) as backend:
        shared = found(backend, regulariser)
        assert away(solve(backend, shared), central(regulariser)) < CLOSE


def ring_weights() -> Tensor:
    weights = torch.zeros(AGENTS, AGENTS, dtype=torch.float64)
    for agent in range(AGENTS):
        for other in graphs.neighbours("ring", AGENTS, agent):
            weights[agent, other] = graphs.metropolis(2, 2)
    return weights + torch.diag(1.0 - weights.sum(1))


def slopes(w: Tensor) -> Tensor:
    return torch.stack([slope(agent, own) for agent, own in enumerate(w)])


@pytest.mark.parametrize("regulariser", ["none", "l2", "l1"])
def test_plain_gossip_stays_away(regulariser: str) -> None:
    weights, w = ring_weights(), torch.zeros(AGENTS, SIZE, dtype=torch.float64)
    for _ in range(10 * ROUNDS):
        w = prox(regulariser, weights @ w - RATE * slopes(w), RATE * STRENGTH)
    assert away(w, central(regulariser)) > FAR
    assert away(w.mean(0), central(regulariser)) > FAR


def extra(rounds: int) -> Iterator[Tensor]:
    """Shi et al. 2015, as published."""
    weights = ring_weights()
    half = (torch.eye(AGENTS, dtype=torch.float64) + weights) / 2
    before = torch.zeros(AGENTS, SIZE, dtype=torch.float64)
    w = half @ before - RATE * slopes(before)
    for _ in range(rounds):
        yield w
        w, before = half @ (2 * w - before) - RATE * (slopes(w) - slopes(before)), w


def exact_diffusion(rounds: int) -> Iterator[Tensor]:
    """Yuan et al. 2019, as published: adapt, correct, combine."""
    half = (torch.eye(AGENTS, dtype=torch.float64) + ring_weights()) / 2
    w = psi = torch.zeros(AGENTS, SIZE, dtype=torch.float64)
    for _ in range(rounds):
        adapted = w - RATE * slopes(w)
        w, psi = half @ (adapted + w - psi), adapted
        yield w


@pytest.mark.parametrize(("form", "published"), [("p2d2", extra), ("prox-ed", exact_diffusion)])
def test_without_a_regulariser_it_is_the_published_method(form: str, published: Any) -> None:
    for rounds, wanted in enumerate(published(12), start=1):
        backend = InProcess(1)
        vectors = solve(backend, found(backend, form=form), rounds)
        torch.testing.assert_close(vectors.double(), wanted, rtol=0, atol=3e-6)


@pytest.mark.parametrize("form", FORMS)
def test_corrections_cancel_out(form: str) -> None:
    backend = InProcess(1)
    shared = found(backend, "l1", form)
    solve(backend, shared, 3 * ROUNDS)
    assert shared.corrections.abs().max() > 0.1
    assert shared.corrections.double().sum(0).abs().max() < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_each_learner_continues_from_a_checkpoint(form: str) -> None:
    one, two, three = InProcess(1), InProcess(1), InProcess(1)
    whole = solve(one, found(one, "l1", form), 40)
    half = found(two, "l1", form)
    solve(two, half, 25)
    rest = found(three, "l1", form)
    rest.restore(half.newest(), half.state())
    assert torch.equal(rest.copies(), half.copies())
    assert torch.equal(solve(three, rest, 15), whole)
    fewer = found(InProcess(1), "l1", form, n=2)
    fewer.restore(half.newest(), half.state())
    assert all(torch.equal(vector, half.newest()) for vector in fewer.copies())
    assert fewer.version() == 25
    assert not fewer.corrections.any()


def test_the_mean_leaves_out_those_that_wait_for_a_restart() -> None:
    shared = found(InProcess(1), n=3)
    shared.rounds[:] = 9, 8, 4
    shared.vector(0, 9).fill_(2.0)
    shared.vector(1, 8).fill_(4.0)
    shared.vector(2, 4).fill_(float("nan"))
    assert shared.newest().tolist() == [3.0] * SIZE
    assert shared.consensus_distance() == pytest.approx(SIZE**0.5)


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_learner_does_not_move_the_optimum(form: str) -> None:
    """The others go on, and with its successor they find what all six look for."""
    with closing(Processes(patience=Patience(backoff_s=0.001, deaths=10**6))) as backend:
        shared = found(backend, "l1", form)
        last, lives = backend.allocate((1,), INT64), backend.allocate((AGENTS,), INT64)
        last[0] = 2**60

        def work(rank: Rank) -> Iterator[None]:
            torch.set_num_threads(1)
            model = make_model()
            hold = shared.join(model, rank.index)
            lives[rank.index] = rank.incarnation
            while hold.pull(model) < last[0]:
                update(hold, model, rank.index)
                yield

        running, faults = backend.run([Job(work)] * AGENTS), list[Fault]()
        for victim, after in ((1, 30), (4, 37), (1, 41)):
            start = shared.version()
            while shared.version() < start + after:
                faults += [fault for fault in [next(running)] if fault]
            [pid] = [post.pid for post in backend.process_table() if post.index == victim]
            before = int(lives[victim])
            os.kill(pid, signal.SIGKILL)
            while lives[victim] == before or len(shared.present()) < AGENTS:
                faults += [fault for fault in [next(running)] if fault]
        last[0] = shared.version() + ROUNDS
        faults += [fault for fault in running if fault]
        assert {fault.cause for fault in faults} == {"killed by SIGKILL"}
        assert len(shared.present()) == AGENTS
        assert away(shared.copies(), central("l1")) < CLOSE


def test_those_left_find_their_own_optimum() -> None:
    """One ends early: its correction is gone, so the others restart theirs."""
    backend = InProcess(1)
    shared = found(backend, "l2")

    def work(rank: Rank) -> Iterator[None]:
        model = make_model()
        hold = shared.join(model, rank.index)
        for _ in range(20 if rank.index == AGENTS - 1 else 2 * ROUNDS):
            update(hold, model, rank.index)
            yield

    assert not any(backend.run([Job(work)] * AGENTS))
    left = range(AGENTS - 1)
    assert away(shared.copies(), central("l2", left)) < CLOSE
    assert away(central("l2"), central("l2", left)) > FAR
