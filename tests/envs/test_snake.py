"""Snake against a slow game of one board, and its gymnasium Env."""

import itertools
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from manyhands import envs
from manyhands.envs.snake import CELL_PIXELS, COLOURS, SNAKE, Boards, Snake, SnakeEnv

MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]
UP, RIGHT, DOWN, LEFT = range(4)


class Game:
    """One board, by the book. Where an apple falls is told from outside."""

    def __init__(self, board: int, body: list[Any], heading: int, apple: Any) -> None:
        self.board, self.body, self.heading, self.apple = board, list(body), heading, apple
        self.hungry = 0

    def target(self, action: int) -> Any:
        heading = self.heading if (action + 2) % 4 == self.heading else action
        (row, column), (down, right) = self.body[0], MOVES[heading]
        return heading, (row + down, column + right)

    def deadly(self, action: int) -> Any:
        _, cell = self.target(action)
        outside = not all(0 <= at < self.board for at in cell)
        stays = self.body if cell == self.apple else self.body[:-1]
        return outside or cell in stays

    def play(self, action: int) -> Any:
        """The reward, terminated, truncated."""
        if self.deadly(action):
            return -1, True, False
        self.heading, cell = self.target(action)
        self.body.insert(0, cell)
        if cell == self.apple:
            self.hungry, self.apple = 0, None
            return 1, len(self.body) == self.board**2, False
        self.body.pop()
        self.hungry += 1
        return 0, False, self.hungry == 4 * self.board**2

    def planes(self) -> Any:
        seen = np.zeros((4, self.board, self.board), np.uint8)
        seen[(0, *self.body[0])] = 255
        for k, cell in enumerate(self.body):
            seen[(1, *cell)] = 255
            seen[(3, *cell)] = 255 * (len(self.body) - k) // len(self.body)
        if self.apple:
            seen[(2, *self.apple)] = 255
        return seen


def only(plane: Any) -> Any:
    """The one cell that is set, or None."""
    found = [tuple(cell) for cell in np.argwhere(plane).tolist()]
    assert len(found) <= 1
    return found[0] if found else None


def game_of(seen: Any) -> Any:
    """The game that an observation of its beginning shows."""
    order = np.argwhere(seen[3])
    body = sorted(map(tuple, order.tolist()), key=lambda cell: -int(seen[(3, *cell)]))
    (row, column), (neck_row, neck_column) = body[:2]
    heading = MOVES.index((row - neck_row, column - neck_column))
    return Game(len(seen[0]), body, heading, only(seen[2]))


def made(board: int, *, lanes: int = 1, seed: int = 1) -> Any:
    return Snake(lanes, board, np.random.SeedSequence(seed))


def careless(game: Any, rng: np.random.Generator) -> Any:  # noqa: ARG001
    return int(rng.integers(4))


def careful(game: Any, rng: np.random.Generator) -> Any:
    """Hardly ever deadly, towards the apple more often than not."""
    safe = [action for action in range(4) if not game.deadly(action)]
    if not safe or rng.random() < 0.01:
        return careless(game, rng)

    def distance(action: int) -> Any:
        _, cell = game.target(action)
        return sum(abs(a - b) for a, b in zip(cell, game.apple, strict=True))

    return min(safe, key=distance) if rng.random() < 0.7 else int(rng.choice(safe))


def circling(board: int) -> Any:
    """Round and round a way through every cell: it wins, or it starves where that is blocked."""
    way = [(0, column) for column in range(board)]
    for row in range(1, board):
        columns = range(1, board) if row % 2 == 0 else range(board - 1, 0, -1)
        way += [(row, column) for column in columns]
    way += [(row, 0) for row in range(board - 1, 0, -1)]
    after = dict(zip(way, way[1:] + way[:1], strict=True))

    def policy(game: Any, rng: np.random.Generator) -> Any:  # noqa: ARG001
        row, column = game.body[0]
        down, right = after[row, column]
        return MOVES.index((down - row, right - column))

    return policy


def compared(board: int, policy: Any, *, steps: int, lanes: int = 7, seed: int = 1) -> Any:
    """Plays both, and returns how the games ended: rewards, discounts, lengths."""
    env, rng, endings = made(board, lanes=lanes, seed=seed), np.random.default_rng(seed), []
    games = [game_of(seen) for seen in env.reset()]
    for _ in range(steps):
        actions = [policy(game, rng) for game in games]
        step, lasts = env.step(np.array(actions)), 0
        for lane, game in enumerate(games):
            reward, terminated, truncated = game.play(actions[lane])
            seen = step.last[lasts] if step.ended[lane] else step.observation[lane]
            game.apple = game.apple or only(seen[2])
            assert (game.apple is None) == (len(game.body) == board**2)
            assert game.apple not in game.body
            assert np.array_equal(seen, game.planes())
            told = step.reward[lane], step.discount[lane], step.ended[lane]
            assert told == (reward, 1 - terminated, terminated or truncated)
            if step.ended[lane]:
                endings.append((reward, float(step.discount[lane]), len(game.body)))
                games[lane], lasts = game_of(step.observation[lane]), lasts + 1
                assert len(games[lane].body) == 3
        assert lasts == len(step.last)
    return endings


@pytest.mark.parametrize("board", [4, 5, 8, 17])
@pytest.mark.parametrize("policy", [careless, careful])
def test_equals_a_slow_game(board: int, policy: Any) -> None:
    endings = compared(board, policy, steps=400, seed=board)
    assert any(reward == -1 and discount == 0 for reward, discount, _ in endings)


@pytest.mark.parametrize("board", [4, 6])
def test_a_full_board_wins(board: int) -> None:
    endings = compared(board, circling(board), steps=1200, seed=3)
    wins = [ending for ending in endings if ending[2] == board**2]
    assert len(wins) > 3
    assert set(wins) == {(1, 0.0, board**2)}


def test_a_game_without_an_apple_is_cut_off() -> None:
    env = SnakeEnv(board=5, patience=9)
    env.reset(seed=1)
    env._boards.apple[:] = 0  # out of reach
    ways = itertools.cycle([UP, RIGHT, DOWN, LEFT])
    while env._boards.head[0] % 7 == 5 or env._boards.head[0] < 14 or env._boards.heading[0]:
        env.reset()
        env._boards.apple[:] = 0
    outcomes = [env.step(np.int64(next(ways)))[1:4] for _ in range(9)]
    assert outcomes == [(0.0, False, False)] * 8 + [(0.0, False, True)]


def position(board: int, body: list[Any], heading: int, apple: Any) -> Any:
    """Boards of one lane with a snake laid out by hand, the head first."""
    boards = Boards(1, board)
    boards.begin(np.arange(1), np.random.default_rng(0))
    boards.leaves[0, 1:-1, 1:-1] = 0
    for k, (row, column) in enumerate(body):
        boards.leaves[0, row + 1, column + 1] = len(body) - k
    side = board + 2
    boards.head[:] = (body[0][0] + 1) * side + body[0][1] + 1
    boards.apple[:] = (apple[0] + 1) * side + apple[1] + 1
    boards.length[:], boards.heading[:] = len(body), heading
    return boards


def play(boards: Any, *actions: Any) -> Any:
    rng = np.random.default_rng(0)
    return [float(boards.play(np.array([action]), rng).reward[0]) for action in actions]


def test_a_reversal_is_ignored() -> None:
    boards = position(4, [(1, 2), (1, 1), (1, 0)], RIGHT, (3, 0))
    assert play(boards, LEFT) == [0]
    assert boards.drawing()[2] == "# oo@#"
    assert play(boards, LEFT) == [-1]  # straight on, into the wall


def test_the_head_may_follow_the_tail_but_not_bite_it() -> None:
    square = [(0, 0), (0, 1), (1, 1), (1, 0)]
    assert play(position(4, square, LEFT, (3, 3)), DOWN, RIGHT, UP, LEFT) == [0, 0, 0, 0]
    assert play(position(4, [*square, (2, 0)], LEFT, (3, 3)), DOWN) == [-1]


def test_the_tail_stays_while_eating() -> None:
    boards = position(4, [(0, 0), (0, 1), (0, 2)], LEFT, (1, 0))
    assert play(boards, DOWN) == [1]
    drawn = [row.replace("*", " ") for row in boards.drawing()]
    assert drawn == ["######", "#ooo #", "#@   #", "#    #", "#    #", "######"]
    assert boards.length.tolist() == [4]


def test_the_dead_are_left_as_they_lay() -> None:
    boards = position(4, [(0, 0), (0, 1), (0, 2)], LEFT, (1, 0))
    before = boards.observe()
    assert play(boards, LEFT) == [-1]
    assert np.array_equal(boards.observe(), before)


def test_games_begin_and_apples_fall_everywhere() -> None:
    seen = made(4, lanes=4000).reset()
    heads, apples = seen[:, 0].sum(axis=0) // 255, seen[:, 2].sum(axis=0) // 255
    assert heads.shape == apples.shape == (4, 4)
    assert heads.min() > 4000 / 32 * 0.7  # a corner is the head of two of the 32 snakes
    assert apples.min() > 4000 / 16 * 0.8
    headings = [game_of(one).heading for one in seen]
    assert min(np.bincount(headings, minlength=4)) > 900


def test_apples_fall_on_free_cells_with_equal_chance() -> None:
    body = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    boards, rng, fallen = position(4, body, LEFT, (3, 0)), np.random.default_rng(1), []
    for _ in range(3000):
        boards._drop_apples(np.arange(1), rng)
        fallen.append(int(boards._cell[boards.apple[0]]))
    cells, counts = np.unique(fallen, return_counts=True)
    assert cells.tolist() == [11, 12, 13, 14, 15]
    assert counts.min() > 500


def test_lanes_play_games_of_their_own() -> None:
    seen = made(8, lanes=64).reset()
    assert len({one.tobytes() for one in seen}) > 50


def test_the_task_and_its_board() -> None:
    from manyhands.config import plans

    plan = plans.resolve("snake", {"env": {"board": 6}})
    env = envs.make(plan.env, lanes=2, seed=np.random.SeedSequence(1), threads=1)
    assert env.spec.observation_shape == (4, 6, 6)
    assert env.spec.id == SNAKE
    assert envs.kind_of(SNAKE) == "snake"
    assert plans.resolve(SNAKE, {}).env.id == SNAKE
    assert SNAKE in envs.unknown("manyhands/Snake-v1").remedy


@pytest.mark.filterwarnings("ignore:.*render.*")
@pytest.mark.parametrize("board", [4, 8])
def test_gymnasium_finds_no_fault(board: int) -> None:
    env = gymnasium.make(SNAKE, board=board, render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=False)
    assert env.unwrapped.observation_space.shape == (4, board, board)


def test_the_env_plays_the_same_game() -> None:
    env, rng = gymnasium.make(SNAKE), np.random.default_rng(0)
    for seed in range(5):
        game, over, rewards = game_of(env.reset(seed=seed)[0]), False, []
        while not over:
            action = careful(game, rng)
            seen, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated) == game.play(action)
            game.apple = game.apple or only(seen[2])
            assert np.array_equal(seen, game.planes())
            assert info == {"length": len(game.body)}
            rewards.append(float(reward))
            over = terminated or truncated
        assert sum(rewards) == len(game.body) - 3 - terminated


def test_text_and_pixels() -> None:
    boards = position(4, [(1, 2), (1, 1), (2, 1)], RIGHT, (0, 0))
    text, pixels = SnakeEnv(board=4, render_mode="ansi"), SnakeEnv(board=4, render_mode="rgb_array")
    text._boards = pixels._boards = boards
    assert text.render() == "######\n#*   #\n# o@ #\n# o  #\n#    #\n######\n"
    picture = pixels.render()
    assert picture.shape == (6 * CELL_PIXELS, 6 * CELL_PIXELS, 3)
    assert picture.dtype == np.uint8
    for row, line in enumerate(boards.drawing()):
        for column, mark in enumerate(line):
            patch = picture[row * CELL_PIXELS :, column * CELL_PIXELS :][:CELL_PIXELS, :CELL_PIXELS]
            inner = patch[1:, 1:].reshape(-1, 3)
            assert (patch[0] == 0).all()  # a line between the cells
            assert (inner == inner[0]).all()
            if mark != "o":
                assert (inner[0] == COLOURS[mark]).all()
    neck, tail = (picture[row * CELL_PIXELS + 5, 2 * CELL_PIXELS + 5].astype(int) for row in (2, 3))
    assert (tail < neck).all()
    assert (neck < COLOURS["o"]).all()
    assert SnakeEnv(board=4).render() is None


def test_a_board_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 4 cells a side, not 3"):
        gymnasium.make(SNAKE, board=3)


def test_gymnasium_knows_it_by_its_module() -> None:
    code = (
        "import gymnasium;"
        f"env = gymnasium.make('manyhands.envs.snake:{SNAKE}', board=5);"
        "print(env.reset(seed=1)[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(4, 5, 5)"
