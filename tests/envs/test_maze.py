"""The Dyna maze: the textbook's plan, its rules, and finer mazes of the same shape."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from manyhands.envs import Config, make, maze
from manyhands.types import BadRequest

UP, RIGHT, DOWN, LEFT = range(4)


def made(resolution: int = 1, **given: str) -> maze.Maze:
    config = Config(id="manyhands/Maze-v0", resolution=resolution)
    env = make(config, lanes=1, seed=np.random.SeedSequence(1), threads=1, **given)  # type: ignore[arg-type]
    assert isinstance(env, maze.Maze)
    return env


def test_it_has_the_textbooks_cells_and_way() -> None:
    mazes = maze.Mazes(1)
    assert (mazes.signs != "#").sum() == 47
    assert mazes.shortest() == 14


@pytest.mark.parametrize("resolution", [2, 3])
def test_finer_mazes_are_as_many_times_longer(resolution: int) -> None:
    mazes = maze.Mazes(1, resolution)
    assert (mazes.signs != "#").sum() == 47 * resolution**2
    assert 14 * (resolution - 1) < mazes.shortest() <= 14 * resolution


def test_walls_stop_and_the_goal_ends() -> None:
    env = made()
    start = int(env.reset()[0, 0])
    assert int(env.step(np.array([LEFT])).observation[0, 0]) == start
    ways = [DOWN, DOWN, DOWN, *[RIGHT] * 6, UP, UP, RIGHT, RIGHT, UP]
    steps = [env.step(np.array([move])) for move in (*ways, UP, UP)]
    assert [float(step.reward[0]) for step in steps] == [0.0] * 15 + [1.0]
    assert steps[-1].ended.all()
    assert not steps[-1].discount.any()
    assert int(steps[-1].last[0, 0]) == 8
    assert int(steps[-1].observation[0, 0]) == start


def test_a_lost_player_is_truncated() -> None:
    env = made()
    env.reset()
    for _ in range(47 * maze.PATIENCE - 1):
        assert not env.step(np.array([LEFT])).ended.any()
    last = env.step(np.array([LEFT]))
    assert last.ended.all()
    assert last.discount.all()


def test_gymnasium_has_the_same_maze() -> None:
    env, ours = gymnasium.make("manyhands/Maze-v0", resolution=2), made(2)
    seen, _ = env.reset(seed=1)
    assert seen == ours.reset()[0, 0]
    rng = np.random.default_rng(2)
    for action in rng.integers(4, size=200):
        step = ours.step(np.array([action]))
        assert env.step(action)[:2] == (step.observation[0, 0], step.reward[0])


def test_it_can_be_seen() -> None:
    env = made(render_mode="ansi")
    env.reset()
    assert env.render_lane(0).splitlines()[2] == "@.#....#."
    pixels = made(render_mode="rgb_array")
    pixels.reset()
    assert pixels.render_lane(0).shape == (144, 216, 3)


def test_a_place_in_a_wall_is_not_restored() -> None:
    env = made()
    env.reset()
    with pytest.raises(ValueError, match="in a wall"):
        env.restore({**env.state(), "at": np.array([7])})


def test_arguments_of_gymnasium_are_refused() -> None:
    with pytest.raises(BadRequest, match=r"--env\.kwargs\.size"):
        maze.check(Config(id="manyhands/Maze-v0", kwargs={"size": 3}))
