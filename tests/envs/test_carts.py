"""CartPole in many lanes at once is gymnasium's CartPole in each of them, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manyhands import envs
from manyhands.envs.carts import FEWEST, ID, Carts
from manyhands.envs.gym import Gym
from manyhands.types import Environment, Step

LANES = 6
SEED = np.random.SeedSequence(3)


def one_by_one() -> Gym:
    return Gym(ID, lanes=LANES, seed=np.random.SeedSequence(3))


def at_once() -> Carts:
    return Carts(lanes=LANES, seed=np.random.SeedSequence(3))


def balance(seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Keeps some poles up for 500 steps, and lets others fall."""
    wise = (seen[:, 2] + 0.3 * seen[:, 3] + 0.02 * seen[:, 1] + 0.02 * seen[:, 0] > 0).astype(int)
    random = rng.random(len(seen)) < np.linspace(0, 0.6, len(seen))
    chosen: np.ndarray = np.where(random, rng.integers(2, size=len(seen)), wise)
    return chosen.astype(np.int32)


def play(env: Environment, steps: int, *, seen: np.ndarray | None = None, seed: int = 0) -> Any:
    rng, found = np.random.default_rng(seed), list[Step]()
    seen = env.reset() if seen is None else seen
    for _ in range(steps):
        found.append(env.step(balance(seen, rng)))
        seen = found[-1].observation
    return found


def same(ours: list[Step], theirs: list[Step]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("observation", "reward", "discount", "ended", "last"):
            a, b = getattr(mine, name), getattr(other, name)
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.flags.c_contiguous
            np.testing.assert_array_equal(a, b, name)
        assert (mine.broken, mine.told) == (other.broken, other.told) == ((), ())


def test_the_numbers_are_those_of_gymnasium() -> None:
    ours, theirs = play(at_once(), 1200), play(one_by_one(), 1200)
    same(ours, theirs)
    ends = [(step.ended, step.discount) for step in theirs]
    assert any((ended & (discount == 0)).any() for ended, discount in ends)  # fell
    assert any((ended & (discount == 1)).any() for ended, discount in ends)  # 500 steps


@pytest.mark.parametrize(("saved", "resumed"), [(at_once, one_by_one), (one_by_one, at_once)])
def test_either_continues_what_the_other_saved(
    saved: Callable[[], Gym], resumed: Callable[[], Gym]
) -> None:
    first = saved()
    play(first, 130)
    second = resumed()
    second.reset()
    seen = second.restore(first.state())
    np.testing.assert_array_equal(seen, first._seen)
    same(play(second, 600, seen=seen), play(first, 600, seen=first._seen))


def test_returned_arrays_are_not_written_again() -> None:
    env = at_once()
    env.reset()
    steps = [env.step(np.ones(LANES, np.int32)) for _ in range(3)]
    assert len({id(step.observation.base or step.observation) for step in steps}) == 3
    before = [step.observation.copy() for step in steps]
    env.step(np.zeros(LANES, np.int32))
    for step, kept in zip(steps, before, strict=True):
        np.testing.assert_array_equal(step.observation, kept)


def test_when_it_is_used() -> None:
    def made(lanes: int = LANES, **values: Any) -> Environment:
        config = replace(envs.Config(id=ID), **values)
        return envs.make(config, lanes=lanes, seed=SEED, threads=1)

    assert isinstance(made(), Carts)
    others = made(FEWEST - 1), made(kwargs={"sutton_barto_reward": True}), made(id="Acrobot-v1")
    for other in others:
        assert isinstance(other, Gym)
        assert not isinstance(other, Carts)
