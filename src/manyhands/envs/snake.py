"""Snake, the game of "Distributed Deep Q-Learning" (Ong, Chavez and Hong 2015), n boards at once.

A snake of three cells starts on a board with walls. Moves: 0 up, 1 right, 2 down, 3 left.

- An apple gives reward 1, and the snake grows by a cell.
- A collision with the wall or itself gives -1 and ends the game; the board is not changed.
- A full board ends the game too: the snake has won.
- The head may enter the cell that the tail is leaving. A reversal is ignored.
- After ``patience`` moves without an apple (0: four per cell) the game is truncated.

`Boards` has the rules, `Snake` is an `Environment` of n boards, `SnakeEnv` is a gymnasium.Env.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from manyhands.envs import Config, Wanted, refuse_arguments
from manyhands.envs.episodes import require_lanes
from manyhands.types import Array, Environment, EnvSpec, State, Step, restored

SNAKE = "manyhands/Snake-v0"
ACTIONS, PLANES, LENGTH_AT_FIRST = 4, 4, 3
WALL = np.iinfo(np.int32).max
NOWHERE = 0  # a corner of the wall: the apple's cell when the board is full
ZERO, ONE = np.float32(0), np.float32(1)
COLOURS = {" ": (0, 0, 0), "o": (60, 160, 60), "@": (170, 255, 90), "*": (230, 50, 50)}
COLOURS |= {"#": (110, 110, 110)}
CELL_PIXELS = 16
TAIL_SHADE = 0.35  # shows the order of the cells of a coiled snake
RENDER_MODES = ("rgb_array", "ansi")
SMALLEST = 4


class Outcome(NamedTuple):
    """[n] each."""

    reward: Array
    terminated: Array
    truncated: Array


class Boards:
    """n games. Cells are numbered row by row, the wall included.

    ``leaves[lane, cell]``: when the snake will have left the cell. Each lane has a clock, which
    stops while the snake eats. So a move writes one cell, and so does growing.
    """

    def __init__(self, lanes: int, board: int, *, patience: int = 0) -> None:
        if board < SMALLEST:
            raise ValueError(f"a board has at least {SMALLEST} cells a side, not {board}")
        self.board, self.patience = board, patience or 4 * board**2
        self._side = board + 2
        self._moves = np.array([-self._side, 1, self._side, -1])
        self._inside = np.arange(self._side**2).reshape(self._side, -1)[1:-1, 1:-1].reshape(-1)
        self._cell = np.zeros(self._side**2, np.int64)  # its number without the wall
        self._cell[self._inside] = np.arange(board**2)
        self._offset = np.arange(lanes) * self._side**2
        self._starts = self._straight_snakes()
        self.leaves = np.full((lanes, self._side, self._side), WALL, np.int32)
        self._flat = self.leaves.reshape(-1)
        self.clock, self.length = np.zeros(lanes, np.int32), np.zeros(lanes, np.int32)
        self.head, self.heading = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
        self.apple, self.hungry = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)

    @property
    def arrays(self) -> dict[str, Array]:
        names = ("leaves", "clock", "length", "head", "heading", "apple", "hungry")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: State) -> None:
        """Refuses impossible states, in which the snake could leave the board."""
        most = {"head": len(self._cell), "apple": len(self._cell), "heading": ACTIONS}
        for name, rows in self.arrays.items():
            rows[:] = restored.between(state, name, rows, 0, most.get(name, WALL + 1) - 1)
        wall = np.isin(np.arange(len(self._cell)), self._inside, invert=True)
        apples = self.apple[self.apple != NOWHERE]
        if wall[self.head].any() or wall[apples].any() or not self.length.all():
            raise ValueError("a snake or an apple is not on the board")
        if (self.leaves.reshape(len(self.leaves), -1)[:, wall] != WALL).any():
            raise ValueError("a board has no wall")

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:
        """Begins games in these lanes (indices)."""
        heading = rng.integers(ACTIONS, size=len(lanes))
        body = self._starts[heading, rng.integers(self._starts.shape[1], size=len(lanes))]
        self.leaves[lanes, 1:-1, 1:-1] = 0
        self._flat[self._offset[lanes, None] + body] = np.arange(1, LENGTH_AT_FIRST + 1)
        self.head[lanes], self.heading[lanes] = body[:, -1], heading
        self.clock[lanes], self.length[lanes], self.hungry[lanes] = 0, LENGTH_AT_FIRST, 0
        self._drop_apples(lanes, rng)

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        heading = np.where(actions ^ 2 == self.heading, self.heading, actions)
        target = self.head + self._moves[heading]
        ate = target == self.apple
        died = self._flat[self._offset + target] > self.clock + 1
        self._move(target, heading, ate=ate, died=died)
        won = self.length == self.board**2
        self.apple[won] = NOWHERE
        self._drop_apples(np.flatnonzero(ate & ~won), rng)
        terminated = died | won
        truncated = (self.hungry >= self.patience) & ~terminated
        return Outcome(ate.astype(np.float32) - died, terminated, truncated)

    def observe(self, lanes: Any = slice(None)) -> Array:
        """New planes [k, 4, n, n]: head, body, apple, and the body's order, 255 at the head."""
        left = self.leaves.reshape(len(self.clock), -1)[lanes].take(self._inside, axis=1)
        left -= self.clock[lanes, None]
        np.maximum(left, 0, out=left)
        planes = np.zeros((len(left), PLANES, self.board**2), np.uint8)
        each = np.arange(len(left))
        planes[each, 0, self._cell[self.head[lanes]]] = 255
        np.multiply(left > 0, np.uint8(255), out=planes[:, 1])
        planes[each, 2, self._cell[self.apple[lanes]]] = 255 * (self.apple[lanes] != NOWHERE)
        planes[:, 3] = 255 * left / self.length[lanes, None]
        return planes.reshape(-1, PLANES, self.board, self.board)

    def drawing(self, lane: int = 0) -> list[str]:
        """The board with its wall as rows of text."""
        signs = np.where(self.leaves[lane].reshape(-1) > self.clock[lane], "o", " ")
        signs[self.apple[lane]], signs[self.head[lane]] = "*", "@"
        wall = np.isin(np.arange(len(signs)), self._inside, invert=True)
        signs[wall] = "#"
        return ["".join(row) for row in signs.reshape(self._side, -1)]

    def shade(self, lane: int = 0) -> Array:
        """The brightness of each cell: 1, and less towards the tail."""
        left = self.leaves[lane] - self.clock[lane]
        body = (left > 0) & (left < self.length[lane])
        return np.where(body, TAIL_SHADE + (1 - TAIL_SHADE) * left / self.length[lane], 1.0)

    def _move(self, target: Array, heading: Array, *, ate: Array, died: Array) -> None:
        """Snakes that died do not move: for them the writes change nothing."""
        self.head = np.where(died, self.head, target)
        self.heading = np.where(died, self.heading, heading)
        self.clock += ~(ate | died)
        self.length += ate
        self._flat[self._offset + self.head] = self.clock + self.length
        self.hungry = np.where(ate, 0, self.hungry + 1)

    def _drop_apples(self, lanes: Array, rng: np.random.Generator) -> None:
        """Puts an apple on a random free cell of each of these lanes (indices)."""
        if not len(lanes):
            return
        free = self.leaves[lanes].reshape(len(lanes), -1) <= self.clock[lanes, None]
        nth = rng.integers(free.sum(axis=1))
        self.apple[lanes] = (free.cumsum(axis=1) > nth[:, None]).argmax(axis=1)

    def _straight_snakes(self) -> Array:
        """[headings, places, 3] all snakes with which a game may begin, tail first."""
        steps = self._moves[:, None, None] * np.array([-1, 0, 1])
        snakes = self._inside[:, None] + steps
        fitting: Array = snakes[np.isin(snakes, self._inside).all(axis=2)]
        return fitting.reshape(ACTIONS, -1, LENGTH_AT_FIRST)


def rendered(boards: Boards, mode: str | None, lane: int = 0) -> Any:
    """Text, or pixels [height, width, 3]."""
    drawn = boards.drawing(lane)
    if mode == "ansi":
        return "\n".join(drawn) + "\n"
    if mode == "rgb_array":
        cells = np.array([[COLOURS[sign] for sign in row] for row in drawn], np.uint8)
        cells = (cells * boards.shade(lane)[..., None]).astype(np.uint8)
        pixels = cells.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
        pixels[::CELL_PIXELS] = pixels[:, ::CELL_PIXELS] = 0  # lines between the cells
        return pixels
    return None


class Snake(Environment):
    """Every returned array is new and never written to again."""

    pictures_per_s = 10.0

    def __init__(
        self,
        lanes: int,
        board: int,
        seed: np.random.SeedSequence,
        *,
        render_mode: str | None = None,
    ) -> None:
        self._render_mode, self._shown = render_mode, list[Any]()
        self.spec = EnvSpec(SNAKE, lanes, (PLANES, board, board), "uint8", 1, ACTIONS)
        self._boards, self._rng = Boards(lanes, board), np.random.default_rng(seed)

    def reset(self) -> Array:
        self._boards.begin(np.arange(self.spec.lanes), self._rng)
        self._look()
        return self._boards.observe()

    def step(self, actions: Array) -> Step:
        reward, terminated, truncated = self._boards.play(actions, self._rng)
        ended = terminated | truncated
        self._look()
        observation = self._boards.observe()
        last = observation[ended]  # a copy
        if len(last):
            lanes = np.flatnonzero(ended)
            self._boards.begin(lanes, self._rng)
            observation[lanes] = self._boards.observe(lanes)
        return Step(observation, reward, np.where(terminated, ZERO, ONE), ended, last)

    def state(self) -> State:
        kept = {name: rows.copy() for name, rows in self._boards.arrays.items()}
        return {"rng": self._rng.bit_generator.state, **kept}

    def restore(self, state: State) -> Array:
        require_lanes(len(state["clock"]), self.spec.lanes)
        self._rng.bit_generator.state = state["rng"]
        self._boards.restore(state)
        return self._boards.observe()

    def render_lane(self, lane: int) -> Any:
        """Text or pixels, if the environment was made with a render mode."""
        return self._shown[lane]

    def _look(self) -> None:
        """Draws before ended games are reset, so that their ends can be seen."""
        if self._render_mode:
            lanes = range(self.spec.lanes)
            self._shown = [rendered(self._boards, self._render_mode, lane) for lane in lanes]

    def close(self) -> None:
        pass


class SnakeEnv(gymnasium.Env[Array, np.int64]):
    """One board: ``gymnasium.make("manyhands/Snake-v0", board=8)``."""

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 10}  # noqa: RUF012

    def __init__(self, board: int = 8, patience: int = 0, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 255, (PLANES, board, board), np.uint8)
        self.action_space = spaces.Discrete(ACTIONS)
        self.render_mode = render_mode
        self._boards = Boards(1, board, patience=patience)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._boards.begin(np.arange(1), self.np_random)
        return self._boards.observe()[0], self._info()

    def step(self, action: np.int64) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self._boards.play(np.array([action]), self.np_random)
        seen = self._boards.observe()[0]
        return seen, float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> Any:
        return rendered(self._boards, self.render_mode)

    def _info(self) -> dict[str, Any]:
        return {"length": int(self._boards.length[0])}


def serves(id: str) -> bool:
    return id == SNAKE


def ids() -> list[str]:
    return [SNAKE]


def check(config: Config) -> None:
    refuse_arguments(config, "Snake", "leave it out; --env.board is its size")


def make(wanted: Wanted) -> Snake:
    board, render_mode = wanted.config.board, wanted.render_mode
    return Snake(wanted.lanes, board, wanted.seed, render_mode=render_mode)


def render_modes(config: Config) -> tuple[str, ...]:  # noqa: ARG001
    return RENDER_MODES


if SNAKE not in gymnasium.registry:
    gymnasium.register(SNAKE, entry_point="manyhands.envs.snake:SnakeEnv")
