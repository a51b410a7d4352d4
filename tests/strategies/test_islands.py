"""Islands: one is Hogwild; several approach one point, also after kills and with packets lost."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import manyhands as mh
from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.config import registry
from manyhands.runs.run import Run
from manyhands.strategies import dogwild, hogwild_plus_plus
from manyhands.strategies.islands import PATIENCE
from manyhands.types import BadRequest, Job, Rank
from support.small_runs import SHARED, assert_equal

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest

INT64 = np.dtype(np.int64)
NUMBERS = 66
FASTER: dict[str, dict[str, Any]] = {
    "hogwild_plus_plus": {"hold_updates": 1},
    "dogwild": {"chunks": 8},
}
ISLANDS = list(FASTER)


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    return optim.FlatModel({"a": nn.Linear(10, 6)})


def found(
    strategy: str, learners: int, island_size: int, backend: Any = None, **values: Any
) -> Any:
    module, model = registry.load("strategies", strategy), make_model()
    return module.make(
        module.Config(**FASTER[strategy] | values),
        backend=backend or InProcess(),
        vector=model.vector.zero_(),
        parts=model.parts,
        optimizer=optim.Config(name="sgd", momentum=0.0),
        learners=learners,
        island_size=island_size,
    )


class Learner:
    """Pushes the same gradient again and again."""

    def __init__(self, shared: Any, index: int, gradient: torch.Tensor) -> None:
        self.model, self.gradient = make_model(), gradient
        self.parameters = shared.join(self.model, index)

    def update(self, lr: float) -> None:
        version = self.parameters.pull(self.model)
        self.parameters.push(self.gradient.clone(), part="a", version=version, lr=lr)


def learners_of(shared: Any) -> list[Learner]:
    generator = torch.Generator().manual_seed(1)
    count = len(shared.updates)
    return [Learner(shared, i, torch.randn(NUMBERS, generator=generator)) for i in range(count)]


def distance(shared: Any) -> float:
    found: float = shared.diagnostics()["charts/consensus_distance"]
    return found


def learn(learners: list[Learner], updates: int, lr: float = 0.1) -> None:
    for _ in range(updates):
        for learner in learners:
            learner.update(lr)


# --- One island, several islands ----------------------------------------------------------------


@pytest.mark.parametrize("strategy", ISLANDS)
def test_one_island_of_all_is_hogwild_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    def train(strategy: str, **options: Any) -> mh.Run:
        return mh.train(
            "cartpole", strategy=strategy, backend="inprocess", workers=3, steps=600,
            out=tmp_path / strategy, **SHARED, **options,
        )  # fmt: skip

    hogwild, one = train("hogwild"), train(strategy, island_size=3)
    assert_equal(one, hogwild)
    assert one.summary["staleness"] == hogwild.summary["staleness"]
    assert one.summary["updates"] == hogwild.summary["updates"] > 100


@pytest.mark.parametrize("strategy", ISLANDS)
@settings(max_examples=10, deadline=None)
@given(islands=st.integers(2, 5), size=st.integers(1, 3), fewer=st.booleans())
def test_constant_gradients_lead_to_one_point(
    strategy: str, islands: int, size: int, fewer: bool
) -> None:
    """The last island may be smaller. Without an exchange they would end far from each other."""
    shared = found(strategy, islands * size - (fewer and size > 1), size)
    learners = learners_of(shared)
    learn(learners, 30)
    before = distance(shared)
    learn(learners, 250, lr=0.0)
    assert shared.islands == islands
    assert distance(shared) < 1e-3 * before
    assert shared.newest().abs().sum() > 1.0
    assert torch.isfinite(shared.newest()).all()


@pytest.mark.parametrize("strategy", ISLANDS)
def test_islands_that_go_on_learning_stay_near_each_other(strategy: str) -> None:
    shared, apart = found(strategy, 4, 2), found(strategy, 4, 2)
    apart.islands = 1  # nothing is exchanged
    for one in (shared, apart):
        learn(learners_of(one), 300)
    assert distance(shared) < 0.1 * distance(apart)


@pytest.mark.parametrize("strategy", ISLANDS)
def test_staleness_counts_updates_of_the_own_island(strategy: str) -> None:
    shared = found(strategy, 4, 2)
    first, second, other, _ = learners_of(shared)
    version = first.parameters.pull(first.model)
    for learner in (second, other, other, other):
        learner.update(0.1)
    first.parameters.push(first.gradient, part="a", version=version, lr=0.1)
    assert shared.ledger.staleness() == (1 / 5, 1.0, 0)
    assert shared.version() == first.parameters.pull(first.model) == 5


@pytest.mark.parametrize("strategy", ISLANDS)
@pytest.mark.parametrize(("statistics", "sets"), [("island", 2), ("own", 3)])
def test_islands_come_back_from_a_checkpoint(strategy: str, statistics: str, sets: int) -> None:
    shared = found(strategy, 3, 2, statistics=statistics)
    learn(learners_of(shared), 20)
    state, vector = shared.state(), shared.newest().clone()
    assert len(shared.slots) == sets
    again = found(strategy, 3, 2, statistics=statistics)
    again.restore(vector, state)
    for mine, theirs in zip(again.vectors, shared.vectors, strict=True):
        assert torch.equal(mine, theirs)
    own, its = again.state()["own"][strategy], state["own"][strategy]
    assert {name for name in own if name != "optimizers"} == set(its) - {"optimizers"}
    for name in set(own) - {"optimizers"}:
        np.testing.assert_array_equal(own[name], its[name])
    assert again.version() == shared.version()
    for learners, size in ((3, 1), (4, 2), (3, 3)):  # the last two have as many sets, or fewer
        other = found(strategy, learners, size, statistics=statistics)
        other.restore(vector, state)
        same = other.islands == 2 and len(other.slots) == sets
        assert all(torch.equal(one, vector) for one in other.vectors) != same
        assert other.version() == shared.version()


@pytest.mark.parametrize("strategy", ["serial", "lock", "hogwild", "gossip"])
def test_a_strategy_without_islands_refuses_a_size(strategy: str) -> None:
    with pytest.raises(BadRequest, match="there are no islands") as refused:
        Run("cartpole", strategy=strategy, island_size=2)
    assert "hogwild_plus_plus" in refused.value.remedy
    assert "dogwild" in refused.value.remedy


def test_a_run_keeps_its_island_size_and_may_change_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": "dogwild", "backend": "inprocess", "workers": 4}
    first = mh.train(
        "cartpole", steps=200, out=tmp_path / "run", island_size=2, **options, **SHARED
    )
    run = Run.resumed(first.path, steps=300)
    assert run.workers.strategy.islands == 2  # type: ignore[attr-defined]
    run._let_go()
    run = Run.resumed(first.path, steps=300, island_size=1)
    assert run.workers.strategy.islands == 4  # type: ignore[attr-defined]
    changed = [note for note in run.progress.notes if note.startswith("changed: ")]
    assert changed == ["changed: workers per island 2 -> 1"]
    run._let_go()
    run = Run.resumed(first.path, steps=300, strategy="hogwild")  # has no islands
    run.finish()
    assert run.summary["agent_steps"] >= 300


# --- Hogwild++ ------------------------------------------------------------------------------------


def test_beta_and_the_length_of_a_turn_are_the_papers() -> None:
    betas = [hogwild_plus_plus.beta_of(islands) for islands in range(1, 20)]
    assert [beta**n + beta for n, beta in enumerate(betas, 1)] == pytest.approx([1.0] * 19)
    assert betas[1] == pytest.approx(0.618, abs=5e-4)
    assert betas[3] == pytest.approx(0.7245, abs=5e-5)
    made = [found("hogwild_plus_plus", n, 1, hold_updates=0) for n in (2, 4, 5, 10, 11)]
    assert [shared.hold_updates for shared in made] == [64, 64, 16, 16, 4]


@settings(max_examples=30, deadline=None)
@given(islands=st.integers(2, 5), seed=st.integers(0, 1000), tolerance=st.sampled_from([0.0, 0.5]))
def test_an_exchange_is_that_of_the_papers_loop(islands: int, seed: int, tolerance: float) -> None:
    """Number by number. And of the sum of all differences it takes the sent one, and adds beta."""
    shared = found("hogwild_plus_plus", islands, 1, tolerance=tolerance)
    rng = np.random.default_rng(seed)
    w, s = rng.normal(size=(2, islands, NUMBERS))
    for island in range(islands):
        shared.vectors[island].copy_(torch.from_numpy(w[island]))
        shared.snapshots[island].copy_(torch.from_numpy(s[island]))
    i = int(rng.integers(islands))
    beta, lam, sent = shared.beta, 1 - shared.beta ** (islands - 1), np.zeros(NUMBERS)
    differences = (w - s).sum(0)
    for k in range(NUMBERS):
        d, following = w[i][k] - s[i][k], w[(i + 1) % islands][k]
        if abs(d) > tolerance:
            sent[k] = d
            w[(i + 1) % islands][k] = following + beta * d
            w[i][k] = lam * following + (1 - lam) * w[i][k] + (beta + lam - 1) * d
            s[i][k] = w[i][k]
        else:
            w[i][k] = lam * following + (1 - lam) * w[i][k] + lam * d
            s[i][k] = w[i][k] - d
    shared.exchange(i)
    np.testing.assert_allclose(torch.stack(shared.vectors), w, atol=1e-6)
    np.testing.assert_allclose(torch.stack(shared.snapshots), s, atol=1e-6)
    np.testing.assert_allclose((w - s).sum(0), differences + (beta - 1) * sent, atol=1e-6)


def test_what_went_round_the_ring_arrives_whole() -> None:
    shared = found("hogwild_plus_plus", 2, 1)
    shared.vectors[0] += 1
    for passes in range(60):
        shared.exchange(passes % 2)
    assert shared.newest().tolist() == pytest.approx([1.0] * NUMBERS)


def test_members_of_an_island_take_turns() -> None:
    shared = found("hogwild_plus_plus", 5, 2, hold_updates=3)
    assert [shared.holder(passes) for passes in range(7)] == [0, 2, 4, 1, 3, 4, 0]
    learners = learners_of(shared)
    learn(learners, 24)
    assert shared.passes[0] == 0, "the first turn is eight times as long"
    learn(learners, 1)
    assert shared.passes[0] == 1
    learn(learners, 3)
    assert shared.passes[0] == 2


def test_the_token_passes_those_that_have_ended() -> None:
    """Both learners of the second island end. What an island learned still reaches the others."""
    shared = found("hogwild_plus_plus", 6, 2)
    learners = learners_of(shared)
    learn(learners, 100)
    going_on = learners[:2] + learners[4:]
    learn(going_on, 20 * PATIENCE, lr=0.0)
    passes = int(shared.passes[0])
    learn(going_on, 5 * PATIENCE, lr=0.0)
    assert shared.passes[0] >= passes + 9
    assert distance(shared) < 1e-3 * float(shared.newest().abs().mean())


# --- Dogwild! -------------------------------------------------------------------------------------


def cycle_of(shared: Any) -> int:
    """Exchanges of an island after which it has sent each of its chunks to each other island."""
    return max(map(len, shared.mastered)) * (shared.islands - 1)


@pytest.mark.parametrize("islands", [2, 3, 5])
def test_without_learning_all_are_equal_after_a_cycle(islands: int) -> None:
    shared = found("dogwild", islands, 1)
    rng = torch.Generator().manual_seed(1)
    for vector, last in zip(shared.vectors, shared.last, strict=True):
        last.copy_(vector.copy_(torch.randn(NUMBERS, generator=rng)))
    members = [learner.parameters for learner in learners_of(shared)]
    for _ in range(cycle_of(shared)):
        for member in members:
            member.exchange()
    members[0].exchange()  # receives what the last one sent
    for vector in shared.vectors[1:]:
        assert torch.equal(vector, shared.vectors[0])


def test_without_loss_every_difference_arrives_once() -> None:
    shared = found("dogwild", 6, 2)
    learners = learners_of(shared)
    learn(learners, 50)
    learn(learners, 100, lr=0.0)
    expected = -0.1 * 50 * sum(learner.gradient for learner in learners)
    for vector in shared.vectors:
        torch.testing.assert_close(vector, expected, rtol=0, atol=1e-3)


def test_losses_are_as_many_as_asked_for_and_repeat() -> None:
    def run(packet_loss: float) -> tuple[Any, int]:
        shared = found("dogwild", 2, 1, packet_loss=packet_loss)
        learn(learners_of(shared), 500)
        return shared, int(shared.values.written.sum())

    (one, arrived), (same, _), (none, all_of_them) = run(0.3), run(0.3), run(0.0)
    assert all_of_them == none.sends.sum() == one.sends.sum() == 1000
    assert 0.25 < 1 - arrived / 1000 < 0.35
    assert all(map(torch.equal, one.vectors, same.vectors))
    assert not torch.equal(one.newest(), none.newest())


def test_with_a_third_lost_islands_still_approach_one_point() -> None:
    shared = found("dogwild", 4, 2, packet_loss=0.3)
    learners = learners_of(shared)
    learn(learners, 100)
    before = distance(shared)
    learn(learners, 200, lr=0.0)
    assert distance(shared) < 1e-3 * before


def test_a_channel_that_loses_all_leaves_islands_alone() -> None:
    shared = found("dogwild", 2, 1, packet_loss=1.0)
    learners = learners_of(shared)
    learn(learners, 30)
    for vector, learner in zip(shared.vectors, learners, strict=True):
        torch.testing.assert_close(vector, -0.1 * 30 * learner.gradient, rtol=0, atol=1e-4)


def test_another_learner_sends_for_one_that_has_ended() -> None:
    shared = found("dogwild", 4, 2)
    learners = learners_of(shared)
    learn(learners, 10)
    sends = int(shared.sends[0])
    learn(learners[1:], PATIENCE + 50)
    assert shared.sender.tolist() == [1, 2]
    assert shared.sends[0] >= sends + 40


@pytest.mark.parametrize("packet_loss", [0.0, 0.3])
def test_a_toy_task_is_learned_over_a_lossy_channel(packet_loss: float, tmp_path: Path) -> None:
    run = mh.train(
        "toy/identity", recipe="dogwild", backend="inprocess", workers=4, island_size=2,
        steps=3000, dogwild={"packet_loss": packet_loss}, out=tmp_path / "run",
        dqn={"lr": 3e-3, "warmup_steps": 100, "batch_size": 32, "steps_per_update": 2,
             "epsilon_decay_steps": 1000, "target_period_updates": 20, "gamma": 0.0},
        memory={"capacity": 2000}, network={"hidden": (16,)}, threads=1, quiet=True,
    )  # fmt: skip
    assert run.evaluate(episodes=20).mean >= 0.9 * 10


# --- Kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ISLANDS)
def test_a_kill_in_an_exchange_stops_no_other(strategy: str) -> None:
    """The one that has the token, or sends: it is stopped in an exchange, and then killed.

    The others go on at once, and exchange; and so does the one that takes its place.
    """
    with closing(Processes()) as backend:
        shared = found(strategy, 4, 2, backend)
        pushes, stopped = backend.allocate((4,), INT64), backend.allocate((2,), INT64)
        enough = backend.allocate((1,), INT64)

        def stop_inside(frame: Any, event: str, _: Any) -> None:
            if event == "return" and frame.f_code.co_name in ("holder", "_send"):
                sys.setprofile(None)
                stopped[0] = os.getpid()
                os.kill(os.getpid(), signal.SIGSTOP)

        def work(rank: Rank) -> Iterator[None]:
            torch.set_num_threads(1)
            learner = Learner(shared, rank.index, torch.ones(NUMBERS))
            while not enough[0]:
                if (rank.index, rank.incarnation) == (0, 0) and pushes.min() >= 50:
                    has_it = strategy == "dogwild" or shared.holder(int(shared.passes[0])) == 0
                    sys.setprofile(stop_inside if has_it else None)
                learner.update(1e-3)
                pushes[rank.index] += 1
                stopped[1] += rank.incarnation
                yield

        def exchanges() -> int:
            return int((shared.passes if strategy == "hogwild_plus_plus" else shared.sends).sum())

        running = backend.run([Job(work)] * 4)
        faults: list[Any] = []
        while not stopped[0]:
            faults += [fault for fault in [next(running)] if fault]
        before = exchanges()
        until(running, lambda: exchanges() > before + 20, faults)
        assert not faults
        os.kill(int(stopped[0]), signal.SIGKILL)
        until(running, lambda: stopped[1] > 100, faults)
        before = exchanges()
        until(running, lambda: exchanges() > before + 20, faults)
        enough[0] = 1
        faults += [fault for fault in running if fault]
        assert [fault.cause for fault in faults] == ["killed by SIGKILL"]
        assert torch.isfinite(shared.newest()).all()
        assert distance(shared) < 0.2 * float(shared.newest().norm())


def until(running: Any, condition: Any, faults: list[Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        faults += [fault for fault in islice(running, 1) if fault]


def test_configs_are_the_strategies_own() -> None:
    assert hogwild_plus_plus.Config.has_islands
    assert dogwild.Config.has_islands
    assert registry.with_islands() == ["dogwild", "hogwild_plus_plus"]
