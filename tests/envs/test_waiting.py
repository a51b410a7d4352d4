"""An environment that waits is the environment, later."""

from __future__ import annotations

import time

import numpy as np

from manyhands import envs
from manyhands.types import Environment


def made(wait_ms: float, *, training: bool = True) -> Environment:
    config = envs.Config(id="CartPole-v1", wait_ms=wait_ms)
    seed = np.random.SeedSequence(3)
    return envs.make(config, lanes=2, seed=seed, threads=1, training=training)


def played(env: Environment, steps: int) -> tuple[np.ndarray, float, float]:
    """The last observations, and the seconds of wall clock and of CPU."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    seen = env.reset()
    for _ in range(steps):
        seen = env.step(np.ones(2, np.int64)).observation
    return seen, time.perf_counter() - began_s, time.process_time() - cpu_s


def test_it_waits_without_using_a_core_and_plays_the_same() -> None:
    slow, wall_s, cpu_s = played(made(10.0), 20)
    quick, *_ = played(made(0.0), 20)
    np.testing.assert_array_equal(slow, quick)
    assert wall_s >= 0.2
    assert cpu_s < wall_s / 2


def test_evaluation_does_not_wait() -> None:
    env = made(60_000.0, training=False)
    env.reset()
    env.step(np.ones(2, np.int64))


def test_its_state_is_the_environments() -> None:
    waiting, plain = made(1.0), made(0.0)
    played(waiting, 5)
    np.testing.assert_array_equal(plain.restore(waiting.state()), waiting.restore(waiting.state()))
    waiting.close()
