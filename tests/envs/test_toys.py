"""The toys play what they say."""

import time
from typing import Any

import numpy as np
import pytest

from manyhands.envs import Config, make
from manyhands.types import Failure


def made(id: str, *, lanes: int = 4, training: bool = True, **options: Any) -> Any:
    seed = np.random.SeedSequence(1)
    return make(Config(id=id, **options), lanes=lanes, seed=seed, threads=1, training=training)


def test_identity_pays_the_action_it_shows() -> None:
    env = made("toy/identity")
    seen = env.reset()
    for k in range(1, 41):
        shown = seen.argmax(axis=1)
        chosen = np.where(np.arange(4) < 2, shown, (shown + 1) % 4)
        step = env.step(chosen)
        assert step.reward.tolist() == [1, 1, 0, 0]
        assert step.ended.tolist() == [k % 10 == 0] * 4
        assert step.discount.tolist() == [1] * 4
        assert (step.last.sum(axis=1) == 1).all()
        seen = step.observation
        assert (seen.sum(axis=1) == 1).all()


def test_chain_pays_at_its_end() -> None:
    env = made("toy/chain", lanes=2)
    env.reset()
    steps = [env.step(np.array([1, 0])) for _ in range(32)]
    assert [k for k, step in enumerate(steps, 1) if step.ended[0]] == [7, 14, 21, 28]
    assert [k for k, step in enumerate(steps, 1) if step.ended[1]] == [32]
    assert steps[6].reward.tolist() == [1, 0]
    assert steps[6].discount.tolist() == [0, 1]
    assert steps[6].last.argmax(axis=1).tolist() == [7]
    assert steps[6].observation.argmax(axis=1).tolist() == [0, 0]
    assert steps[31].discount.tolist() == [1, 1]
    assert steps[7].reward.tolist() == [0, 0]


def frames(**options: Any) -> Any:
    env = made("toy/frames", **options)
    rng = np.random.default_rng(0)
    first = env.reset()
    return first, [env.step(rng.integers(4, size=4)) for _ in range(400)]


def test_frames_are_stacked_and_padded_like_the_emulators() -> None:
    before, steps = frames()
    for step in steps:
        lasts = iter(step.last)
        for lane in range(4):
            went_on = next(lasts) if step.ended[lane] else step.observation[lane]
            assert np.array_equal(went_on[:-1], before[lane, 1:])
            if step.ended[lane]:
                assert not step.observation[lane, :-1].any()
                assert step.observation[lane, -1].any()
        before = step.observation


def test_frames_terminate_are_cut_off_and_lose_lives() -> None:
    _, steps = frames()
    zero = np.array([step.discount == 0 for step in steps])
    ended = np.array([step.ended for step in steps])
    assert (ended & zero).any()
    assert (ended & ~zero).any()
    assert (~ended & zero).sum() > (ended & zero).sum()
    for quiet in ({"training": False}, {"life_loss": False}):
        _, others = frames(**quiet)
        assert not any((~step.ended & (step.discount == 0)).any() for step in others)
        assert np.array_equal([step.ended for step in others], ended)


def test_frames_show_the_action_that_pays() -> None:
    env = made("toy/frames")
    seen = env.reset()
    for _ in range(50):
        bright = (seen[:, -1] == 255).all(axis=1)
        step = env.step(bright.argmax(axis=1) // 2)
        assert step.reward.tolist() == [1] * 4
        seen = step.observation


def test_nan_is_a_failure_after_thirty_steps() -> None:
    env = made("toy/nan")
    env.reset()
    for _ in range(30):
        env.step(np.zeros(4, np.int64))
    with pytest.raises(Failure, match=r"toy/nan: the reward is NaN .* lane 0, at step 31"):
        env.step(np.zeros(4, np.int64))


def test_slow_is_slow() -> None:
    env = made("toy/slow")
    env.reset()
    began = time.perf_counter()
    for _ in range(4):
        env.step(np.zeros(4, np.int64))
    assert time.perf_counter() - began >= 0.02
