"""`Policy.act` takes what the run's environment gives, and answers with its own actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import manyhands as mh
from manyhands import envs
from manyhands.envs.observations import AS_IT_IS, ONE_HOT, SCREEN, Reading, Sight
from manyhands.types import EnvSpec

UNTRAINED: dict[str, Any] = {"steps": 20, "quiet": True, "evaluation": {"period_steps": 0}}


class Room(gym.Env[Any, Any]):
    """Of any space; nothing happens in it."""

    def __init__(self, space: Any, actions: Any) -> None:
        self.observation_space, self.action_space = space, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, False, False, {}


def policy_for(make: str | Callable[[], Any], out: Path) -> mh.Policy:
    return mh.load(mh.train(make, out=out, **UNTRAINED).path)


def test_numbers_of_a_discrete_space(tmp_path: Path) -> None:
    policy = policy_for("FrozenLake-v1", tmp_path / "run")
    chosen = policy.act(np.arange(16)[:, None])  # as the lanes keep them
    env = gym.make("FrozenLake-v1")
    seen, _ = env.reset(seed=1)
    assert policy.act(seen) == chosen[0]
    assert [policy.act(place) for place in range(16)] == chosen.tolist()
    assert policy.act(np.arange(16)).tolist() == chosen.tolist()
    assert policy.act([3, 0]).tolist() == chosen[[3, 0]].tolist()
    with pytest.raises(ValueError, match="16 is none of the 16 observations"):
        policy.act(16)
    with pytest.raises(ValueError, match="no observations of FrozenLake"):
        policy.act(np.array([[16]]))
    with pytest.raises(TypeError, match="integer"):
        policy.act(np.zeros(7))


def test_images_with_channels_last_and_actions_from_one(tmp_path: Path) -> None:
    space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    policy = policy_for(lambda: Room(space, spaces.Discrete(4, start=1)), tmp_path / "run")
    images = np.stack([space.sample() for _ in range(8)])
    actions = policy.act(images)
    ours, _ = policy.algorithm.act(
        np.ascontiguousarray(images.transpose(0, 3, 1, 2)),
        np.zeros(8, np.float32),
        np.random.default_rng(0),
    )
    assert actions.tolist() == (ours + 1).tolist()
    assert [policy.act(image) for image in images] == actions.tolist()
    assert policy.act(images.transpose(0, 3, 1, 2)).tolist() == actions.tolist()
    assert {policy.act(images[0], epsilon=1.0) for _ in range(60)} == {1, 2, 3, 4}
    with pytest.raises(ValueError, match=r"pixels from 0 to 255, not float64"):
        policy.act(images / 255)


def spec(frame: tuple[int, ...], reading: Reading | None, *, stack: int = 1) -> EnvSpec:
    dtype = "float32" if reading and reading.kind == ONE_HOT else "uint8"
    return EnvSpec("x", 1, frame, dtype, stack, 2, raw=reading.state() if reading else {})


def test_a_run_from_before_readings_were_kept_is_read_as_it_is() -> None:
    seen, one = Sight(spec((2, 3, 3), None)).see(np.ones((2, 3, 3), np.uint8))
    assert (seen.shape, one) == ((1, 2, 3, 3), True)


@pytest.mark.parametrize("raw", [Reading("sideways", (3,)), Reading(AS_IT_IS, (4,))])
def test_a_reading_that_does_not_fit_is_refused(raw: Reading) -> None:
    with pytest.raises(ValueError, match=r"unknown kind|does not give frames"):
        Sight(spec((3,), raw))


def test_frames_are_stacked_for_each_episode_until_it_ends() -> None:
    sight = Sight(spec((84, 84), Reading(SCREEN, (210, 160)), stack=3))
    frames = [np.full((2, 84, 84), value, np.uint8) for value in (1, 2, 3, 4)]
    newest = [sight.see(frame)[0][0, :, 0, 0].tolist() for frame in frames]
    assert newest == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    sight.reset(np.array([True, False]))
    stacks, one = sight.see(frames[0])
    assert not one
    assert stacks[:, :, 0, 0].tolist() == [[0, 0, 1], [3, 4, 1]]
    whole = np.arange(3, dtype=np.uint8)[:, None, None] * np.ones((84, 84), np.uint8)
    assert sight.see(whole)[0][0, :, 0, 0].tolist() == [0, 1, 2]  # taken as it is
    with pytest.raises(ValueError, match="1 observations came after 2: call reset"):
        sight.see(frames[0][0])
    with pytest.raises(ValueError, match="a mask of 2 episodes"):
        sight.reset([0, 1])
    sight.reset()
    stacks, one = sight.see(frames[0][0])
    assert one
    assert stacks[:, :, 0, 0].tolist() == [[0, 0, 1]]


def test_as_many_frames_as_a_stack_has_are_not_taken_for_one() -> None:
    sight = Sight(spec((84, 84), Reading(SCREEN, (210, 160)), stack=4))
    frames = np.arange(1, 5, dtype=np.uint8)[:, None, None] * np.ones((84, 84), np.uint8)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\[None\] for a stack, observation\[:, None\] for"):
            sight.see(frames)
        seen, one = sight.see(frames[:, None])
        assert (seen.shape, one) == ((4, 4, 84, 84), False)
        seen, one = sight.see(frames)  # known by now
        assert (seen[:, :, 0, 0].tolist(), one) == ([[0, 0, n, n] for n in (1, 2, 3, 4)], False)
        sight.reset()
    seen, one = sight.see(frames[None])
    assert (seen[:, :, 0, 0].tolist(), one) == ([[1, 2, 3, 4]], False)
    seen, one = sight.see(frames)
    assert (seen[:, :, 0, 0].tolist(), one) == ([[1, 2, 3, 4]], True)
    sight.reset()
    assert sight.see(frames[0])[1]  # episodes come singly
    assert sight.see(frames)[0].shape == (1, 4, 84, 84)


def test_screens_of_the_emulator_become_what_a_run_sees() -> None:
    """In colour and full size, beside what the emulator makes of the same screens."""
    pytest.importorskip("ale_py")
    env: Any = envs.make(
        envs.Config(id="breakout"),
        lanes=1,
        seed=np.random.SeedSequence(3),
        threads=1,
        render_mode="rgb_array",
    )
    sight, rng, wrong = Sight(env.spec), np.random.default_rng(0), 0
    observation = env.reset()
    for _ in range(40):
        colour = env.render_lane(0)
        assert colour.shape == (210, 160, 3)
        seen, one = sight.see(colour)
        assert (one, seen.dtype, seen.shape) == (True, np.dtype(np.uint8), (1, 4, 84, 84))
        apart = np.abs(seen.astype(int) - observation)
        assert apart.max() <= 1
        wrong += int(np.count_nonzero(apart))
        step = env.step(rng.integers(env.spec.actions, size=1))
        assert not step.ended.any()
        observation = step.observation
    assert wrong < 40 * 4 * 84 * 84 / 10_000
    small, _ = Sight(env.spec).see(observation[:, -1][0])
    assert np.array_equal(small[0, -1], observation[0, -1])
    assert not small[0, :-1].any()
    assert np.array_equal(sight.see(observation[0])[0], observation)
    with pytest.raises(ValueError, match=r"it is a screen \(210, 160, 3\)"):
        sight.see(np.zeros((100, 100, 3), np.uint8))
    env.close()
