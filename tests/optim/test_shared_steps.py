"""Threads share the step of a long vector: the same bits as one thread's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from manyhands import optim
from manyhands.maths import threads
from manyhands.optim import part

LENGTH = 1_003  # its end is not aligned


@pytest.fixture(autouse=True)
def _one_thread_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(part, "LONG", 100)
    yield
    threads.use(1)


@pytest.mark.parametrize("rule", ["adam", "radam", "rmsprop", "sgd", "adagrad"])
def test_a_shared_step_gives_the_same_bits(rule: str) -> None:
    vectors, states = [], []
    for number in (1, 3):
        threads.use(number)
        torch.manual_seed(0)
        vector = torch.randn(LENGTH)
        optimizer = part.PartOptimizer(optim.Config(name=rule), vector)
        for _ in range(3):
            optimizer.step(torch.randn(LENGTH), 0.01)
        vectors.append(vector)
        states.append(optimizer.state())
    assert torch.equal(*vectors)
    for name, slot in states[0].items():
        assert (slot == states[1][name]).all(), name


def test_shares_cover_a_vector_once_and_are_aligned() -> None:
    threads.use(3)
    shares = part._shares(torch.zeros(LENGTH))
    covered = [at for some in shares for at in range(LENGTH)[some]]
    assert covered == list(range(LENGTH))
    assert len(shares) == 3
    assert all(some.start % part.ALIGNED == 0 for some in shares)


def test_the_norm_of_a_shared_gradient_is_the_same() -> None:
    gradient = torch.randn(LENGTH)
    norm = float(gradient.norm())
    threads.use(2)
    assert optim.clip(gradient, norm / 2) == pytest.approx(norm, rel=1e-5)
    assert float(gradient.norm()) == pytest.approx(norm / 2, rel=1e-5)
