"""What every environment promises, whatever plays behind it."""

import json
from typing import Any

import numpy as np
import pytest

from manyhands.envs import Config, make

KINDS = {
    "toy/identity": Config(id="toy/identity"),
    "toy/numbers": Config(id="toy/numbers"),
    "toy/chain": Config(id="toy/chain"),
    "toy/frames": Config(id="toy/frames"),
    "snake": Config(id="manyhands/Snake-v0", board=5),
    "maze": Config(id="manyhands/Maze-v0"),
    "CartPole-v1": Config(id="CartPole-v1"),
    "LunarLander-v3": Config(id="LunarLander-v3"),
    "FrozenLake-v1": Config(id="FrozenLake-v1"),
    "Blackjack-v1": Config(id="Blackjack-v1"),
    "breakout": Config(id="breakout", sticky=0.25),
}
LANES = 3
LONG = {"manyhands/Maze-v0": 3000}  # steps until a random player meets an end


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest) -> Config:
    return KINDS[request.param]


def made(config: Config, *, seed: int = 1, lanes: int = LANES) -> Any:
    return make(config, lanes=lanes, seed=np.random.SeedSequence(seed), threads=1)


def play(env: Any, steps: int, *, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [env.step(rng.integers(env.spec.actions, size=env.spec.lanes)) for _ in range(steps)]


def same(steps: list[Any], others: list[Any]) -> bool:
    return all(
        np.array_equal(a, b)
        for step, other in zip(steps, others, strict=True)
        for a, b in zip(step, other, strict=True)
    )


def through_json(tree: Any) -> Any:
    """What a checkpoint does: arrays stay arrays, all else goes through JSON."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, dict):
        return {name: through_json(leaf) for name, leaf in tree.items()}
    return json.loads(json.dumps(tree))


def test_shapes_and_types(config: Config) -> None:
    env = made(config)
    spec = env.spec
    whole = (LANES, *spec.observation_shape)
    first = env.reset()
    assert (first.shape, first.dtype) == (whole, spec.frame_dtype)
    for step in play(env, 60):
        assert (step.observation.shape, step.observation.dtype) == (whole, spec.frame_dtype)
        assert (step.reward.shape, step.reward.dtype) == ((LANES,), np.float32)
        assert (step.discount.shape, step.discount.dtype) == ((LANES,), np.float32)
        assert (step.ended.shape, step.ended.dtype) == ((LANES,), np.bool_)
        assert step.last.shape == (step.ended.sum(), *spec.observation_shape)
        assert step.last.dtype == spec.frame_dtype
        assert set(step.discount) <= {0.0, 1.0}


def test_one_seed_is_one_history_and_another_seed_another(config: Config) -> None:
    runs = []
    for seed in (1, 1, 2):
        env = made(config, seed=seed)
        runs.append([env.reset(), *(leaf for step in play(env, 150) for leaf in step)])
    assert all(np.array_equal(a, b) for a, b in zip(*runs[:2], strict=True))
    if config.id not in ("toy/chain", "manyhands/Maze-v0"):  # nothing is left to chance
        assert not all(np.array_equal(a, b) for a, b in zip(runs[0], runs[2], strict=False))


def test_episodes_end_within_the_play_tested(config: Config) -> None:
    env = made(config)
    env.reset()
    assert any(step.ended.any() for step in play(env, LONG.get(config.id, 300)))


def test_a_restored_environment_plays_on_as_the_old_one(config: Config) -> None:
    old = made(config)
    old.reset()
    before = play(old, 300)
    state = through_json(old.state())
    new = made(config, seed=99)
    new.reset()
    play(new, 20, seed=5)  # what it did before must not matter
    assert np.array_equal(new.restore(state), before[-1].observation)
    assert same(play(old, 200, seed=7), play(new, 200, seed=7))


def test_a_restored_environment_can_be_kept_again(config: Config) -> None:
    old = made(config)
    old.reset()
    play(old, 40)
    middle = made(config, seed=99)
    middle.restore(through_json(old.state()))
    play(old, 30, seed=3), play(middle, 30, seed=3)
    new = made(config, seed=100)
    new.restore(through_json(middle.state()))
    assert same(play(old, 100, seed=7), play(new, 100, seed=7))


def test_a_state_taken_right_after_a_reset(config: Config) -> None:
    old, new = made(config), made(config, seed=99)
    first = old.reset()
    assert np.array_equal(new.restore(through_json(old.state())), first)
    assert same(play(old, 50), play(new, 50))


def test_what_was_returned_is_never_written_to_again(config: Config) -> None:
    env = made(config)
    first = env.reset()
    kept = first.copy()
    steps, copies = [], []
    for step in (step for _ in range(150) for step in play(env, 1)):
        steps.append(step)
        copies.append([*(leaf.copy() for leaf in step[:5]), *step[5:]])  # the rest are tuples
    state, held = env.state(), through_json(env.state())
    play(env, 50)
    assert np.array_equal(first, kept)
    assert same(steps, copies)
    assert all(np.array_equal(state[name], held[name]) for name in held)


def test_a_caller_may_write_into_what_it_was_given(config: Config) -> None:
    env, other = made(config), made(config)
    env.reset()[:] = 0
    other.reset()
    for step, untouched in zip(play(env, 1), play(other, 1), strict=True):
        assert same([step], [untouched])
        step.observation[:] = 0
    assert same(play(env, 50, seed=3), play(other, 50, seed=3))


def test_one_lane_is_enough(config: Config) -> None:
    env = made(config, lanes=1)
    env.reset()
    play(env, 150)
    new = made(config, lanes=1, seed=99)
    new.restore(through_json(env.state()))
    assert same(play(env, 50, seed=7), play(new, 50, seed=7))


def test_a_state_of_other_lanes_is_refused(config: Config) -> None:
    from manyhands.types import BadRequest

    one = made(config, lanes=1)
    one.reset()
    with pytest.raises(BadRequest, match="holds 1 running"):
        made(config).restore(one.state())
