"""The emulator's room."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")

from manyhands.envs import Config, atari, make
from manyhands.types import Failure


def made(
    id: str = "breakout", *, lanes: int = 2, seed: int = 1, training: bool = True, **options: Any
) -> Any:
    config = Config(id=id, **options)
    seeds = np.random.SeedSequence(seed)
    return make(config, lanes=lanes, seed=seeds, threads=1, training=training)


def play(env: Any, steps: int, *, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return [env.step(rng.integers(env.spec.actions, size=env.spec.lanes)) for _ in range(steps)]


@pytest.mark.parametrize(
    "id",
    ["space_invaders", "spaceinvaders", "ALE/SpaceInvaders-v5", "SpaceInvadersNoFrameskip-v4"],
)
def test_a_game_has_many_names(id: str) -> None:
    assert made(id, lanes=1).spec.id == "space_invaders"


def test_spec() -> None:
    spec = made().spec
    assert spec.observation_shape == (4, 84, 84)
    assert (spec.frame_shape, spec.stack, spec.frame_dtype) == ((84, 84), 4, "uint8")
    assert (spec.actions, spec.frames_per_step, spec.lanes) == (4, 4, 2)


def test_one_frame_keeps_a_channel_for_the_network() -> None:
    env = made(stack=1, frame_size=42)
    assert env.reset().shape == (2, 1, 42, 42) == (2, *env.spec.observation_shape)


def only_newest(observation: Any) -> Any:
    return not observation[:-1].any() and observation[-1].any()


def test_an_episode_begins_with_one_frame_and_zeros() -> None:
    env = made(max_frames=400)
    assert all(only_newest(observation) for observation in env.reset())
    steps = play(env, 250)
    assert sum(step.ended.sum() for step in steps) > 3
    for step in steps:
        for lane in range(2):
            assert only_newest(step.observation[lane]) == step.ended[lane]
        assert all(last[:-1].any() for last in step.last)


def test_the_stack_moves_on_by_one_frame() -> None:
    env = made(lanes=1)
    before = env.reset()
    for step in play(env, 20):
        assert np.array_equal(step.observation[0, :-1], before[0, 1:])
        before = step.observation


def test_a_cut_off_bootstraps() -> None:
    env = made(max_frames=40, noop_max=0)
    env.reset()
    steps = play(env, 10)
    assert [bool(step.ended.all()) for step in steps] == [False] * 9 + [True]
    assert steps[-1].discount.tolist() == [1.0, 1.0]


def lives_lost(env: Any, steps: int) -> Any:
    """Per step and lane, what a discount of 0 should say, from the emulator's own account."""
    lives, told = None, []

    def listen(step: Any) -> Any:
        def wrapped(actions: Any) -> Any:
            nonlocal lives
            before = lives
            *rest, info = step(actions)
            told.append((info["lives"] < before, rest[2], rest[3]))
            lives = info["lives"]
            return *rest, info

        return wrapped

    def listen_reset(reset: Any) -> Any:
        def wrapped(**kwargs: Any) -> Any:
            nonlocal lives
            observation, info = reset(**kwargs)
            lives = info["lives"]
            return observation, info

        return wrapped

    env._env.step, env._env.reset = listen(env._env.step), listen_reset(env._env.reset)
    env.reset()
    return play(env, steps), told


@pytest.mark.parametrize(
    ("training", "life_loss"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_a_lost_life_is_discount_0_while_learning_only(training: bool, life_loss: bool) -> None:
    env = made(training=training, life_loss=life_loss)
    steps, told = lives_lost(env, 300)
    lost = np.array([lost for lost, _, _ in told])
    terminated = np.array([over for _, over, _ in told])
    assert (lost & ~terminated).sum() > 5
    assert terminated.any()
    zero = np.array([step.discount for step in steps]) == 0
    assert np.array_equal(zero, lost | terminated if training and life_loss else terminated)
    assert np.array_equal([step.ended for step in steps], terminated)


def test_rewards_are_the_score() -> None:
    env = made("space_invaders")
    env.reset()
    assert max(step.reward.max() for step in play(env, 200)) >= 5


@pytest.mark.parametrize("actions", [[0, 4], [-1, 0], [0], [0, 0, 0]])
def test_an_action_out_of_range_is_refused(actions: list[int]) -> None:
    env = made()
    env.reset()
    with pytest.raises(ValueError, match="actions"):
        env.step(np.array(actions))


@pytest.mark.parametrize(("sticky", "noop_max"), [(0.0, 0), (0.25, 0), (0.0, 30)])
def test_chance_is_in_sticky_actions_and_no_ops_alone(sticky: float, noop_max: int) -> None:
    env = made(sticky=sticky, noop_max=noop_max)
    env.reset()
    steps = [env.step(np.array([2 + k % 2] * 2)) for k in range(30)]
    differ = any(not np.array_equal(*step.observation) for step in steps)
    assert differ == (sticky > 0 or noop_max > 0)


def test_no_ops_are_of_a_frame_and_fewer_than_asked_for() -> None:
    """As the option's words say: 0 to two less; and one FIRE."""
    env = made(lanes=1, noop_max=5)
    env.reset()
    emulators, begun = env._env, set()
    for _ in range(60):
        _, info = emulators.reset(seed=np.array([-1]))
        begun.add(int(info["episode_frame_number"][0]) - 1)
    assert begun == {0, 1, 2, 3}


@pytest.mark.parametrize("seed_after", [0, 100, 10**9])
def test_a_replay_is_exact_however_often_a_lane_is_seeded(
    monkeypatch: pytest.MonkeyPatch, seed_after: int
) -> None:
    monkeypatch.setattr(atari, "SEED_AFTER", seed_after)
    old, new = made(sticky=0.25), made(sticky=0.25, seed=9)
    old.reset()
    before = play(old, 330)
    lengths = old.state()["lengths"]
    assert lengths[0] != lengths[1] or seed_after == 10**9
    assert (lengths == 330).all() == (seed_after == 10**9)
    assert np.array_equal(new.restore(old.state()), before[-1].observation)
    for a, b in zip(play(old, 150, seed=7), play(new, 150, seed=7), strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_episode_not_seeded_costs_no_seed() -> None:
    env = made(max_frames=100, lanes=1)
    env.reset()
    seeds = env.state()["seeds"].tolist()
    play(env, 60)
    assert env.state()["seeds"].tolist() == seeds
    env.reset()
    assert env.state()["seeds"].tolist() != seeds
    assert env.state()["lengths"].tolist() == [0]


class Fragile:
    """An emulator whose threads raise at some calls of step."""

    def __init__(self, env: Any, calls: set[int]) -> None:
        self._env, self._calls = env, set(calls)
        self._steps = 0

    def step(self, actions: Any) -> Any:
        self._steps += 1
        if self._steps in self._calls:
            raise RuntimeError("an emulator thread is gone")
        return self._env.step(actions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def test_emulators_that_break_are_made_again() -> None:
    env = made()
    before = env.reset()
    env._env = Fragile(env._env, {3})
    steps = play(env, 6)
    assert [bool(step.broken) for step in steps] == [False, False, True, False, False, False]
    (found,) = steps[2].broken
    assert (found.lanes, "RuntimeError" in found.cause) == ((0, 1), True)
    assert not steps[2].ended.any(), "nothing is known of that step"
    assert len(steps[2].last) == 0
    assert steps[2].observation.shape == before.shape
    assert all(only_newest(observation) for observation in steps[2].observation)


def test_emulators_that_break_again_and_again_are_given_up() -> None:
    env = made(lanes=1)
    env.reset()
    env._make = lambda make=env._make: Fragile(make(), {1})
    env._env = Fragile(env._env, {1})
    with pytest.raises(Failure, match="RuntimeError"):
        play(env, 1000)
