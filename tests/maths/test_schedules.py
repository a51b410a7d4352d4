from __future__ import annotations

from functools import partial

import pytest

from manyhands.maths import schedules


def test_epsilon_is_one_in_the_warmup_and_falls_to_its_end() -> None:
    epsilon = partial(schedules.epsilon, warmup_steps=100, decay_steps=1000, end=0.1)
    assert [epsilon(t) for t in (0, 100)] == [1.0, 1.0]
    assert epsilon(600) == pytest.approx(0.55)
    assert epsilon(1100) == epsilon(10**9) == pytest.approx(0.1)


def test_epsilon_without_a_decay_is_its_end_after_the_warmup() -> None:
    epsilon = partial(schedules.epsilon, warmup_steps=5, decay_steps=0, end=0.1)
    assert [epsilon(t) for t in (0, 5, 6)] == pytest.approx([1.0, 1.0, 0.1])


def test_the_learning_rate_falls_to_a_tenth_and_stays() -> None:
    rate = partial(schedules.learning_rate, start=2.0, decay_steps=100)
    assert [rate(t) for t in (0, 50, 100, 10**9)] == pytest.approx([2.0, 1.1, 0.2, 0.2])


def test_the_learning_rate_is_constant_without_a_decay() -> None:
    assert schedules.learning_rate(10**9, start=1e-3, decay_steps=0) == 1e-3
