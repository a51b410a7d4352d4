"""The Dyna maze (Sutton and Barto 2018, example 8.1), n of them at once, at any resolution.

Find the way from S to G. Moves: 0 up, 1 right, 2 down, 3 left; a wall or the border stops them.
G gives reward 1 and ends the episode, all else 0. The observation is the number of the cell, row
by row. At resolution k each cell becomes k x k cells: S is the first of its cells, G all of them.
The textbook's episodes have no limit. Here they are truncated after `PATIENCE` steps per free cell.

`Mazes` has the rules, `Maze` is an `Environment` of n mazes, `MazeEnv` is a gymnasium.Env.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from manyhands.envs import Config, Wanted, refuse_arguments
from manyhands.envs.toy import Outcome, Toy
from manyhands.types import Array, Environment, EnvSpec, State, restored

MAZE = "manyhands/Maze-v0"
PLAN = (
    ".......#G",
    "..#....#.",
    "S.#....#.",
    "..#......",
    ".....#...",
    ".........",
)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
PATIENCE = 100
COLOURS = {".": (235, 235, 235), "#": (70, 70, 70), "S": (150, 190, 235), "G": (120, 200, 120)}
COLOURS |= {"@": (220, 60, 60)}
CELL_PIXELS = 24
RENDER_MODES = ("rgb_array", "ansi")


class Mazes:
    """n mazes. `after[cell, action]` is the cell that follows, `goals[cell]` whether it is G."""

    def __init__(self, lanes: int, resolution: int = 1) -> None:
        plan = np.array([list(row) for row in PLAN])
        self.signs = plan.repeat(resolution, 0).repeat(resolution, 1)
        flat = self.signs.reshape(-1)
        self.after, self.goals = _after(self.signs), flat == "G"
        self.start = int(np.flatnonzero(flat == "S")[0])
        self.patience = PATIENCE * int((flat != "#").sum())
        counts = (flat.size,)
        self.spec = EnvSpec(MAZE, lanes, (1,), "int32", 1, len(MOVES), counts=counts)
        self.at = np.full(lanes, self.start)
        self.steps = np.zeros(lanes, np.int64)
        self.arrays: dict[str, Array] = {"at": self.at, "steps": self.steps}
        self._never = np.zeros(lanes, np.bool_)

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:  # noqa: ARG002
        self.at[lanes] = self.start
        self.steps[lanes] = 0

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:  # noqa: ARG002
        self.at[:] = self.after[self.at, actions]
        self.steps += 1
        arrived = self.goals[self.at]
        late = (self.steps >= self.patience) & ~arrived
        return Outcome(arrived.astype(np.float32), arrived, late, self._never)

    def observe(self) -> Array:
        return self.at[:, None].astype(np.int32)

    def shortest(self) -> int:
        """The fewest steps from S to G."""
        reached, steps = np.zeros(len(self.goals), np.bool_), 0
        reached[self.start] = True
        while not (reached & self.goals).any():
            reached[self.after[reached]] = True
            steps += 1
        return steps

    def drawing(self, lane: int = 0) -> list[str]:
        signs = self.signs.copy()
        signs.reshape(-1)[self.at[lane]] = "@"
        return ["".join(row) for row in signs]


def _after(signs: Array) -> Array:
    """[cells, actions] the cell after each move."""
    height, width = signs.shape
    row, column = np.divmod(np.arange(signs.size), width)
    after = np.zeros((signs.size, len(MOVES)), np.int64)
    for action, (down, right) in enumerate(MOVES):
        to = np.clip(row + down, 0, height - 1) * width + np.clip(column + right, 0, width - 1)
        after[:, action] = np.where(signs.reshape(-1)[to] == "#", np.arange(signs.size), to)
    return after


def rendered(mazes: Mazes, mode: str | None, lane: int = 0) -> Any:
    """Text, or pixels [height, width, 3]."""
    drawn = mazes.drawing(lane)
    if mode == "ansi":
        return "\n".join(drawn) + "\n"
    if mode == "rgb_array":
        cells = np.array([[COLOURS[sign] for sign in row] for row in drawn], np.uint8)
        side = max(4, CELL_PIXELS * len(PLAN) // len(drawn))
        pixels = cells.repeat(side, axis=0).repeat(side, axis=1)
        pixels[::side] = pixels[:, ::side] = 0  # lines between the cells
        return pixels
    return None


class Maze(Toy):
    pictures_per_s = 10.0

    def __init__(
        self, mazes: Mazes, seed: np.random.SeedSequence, *, render_mode: str | None = None
    ) -> None:
        super().__init__(mazes, seed, life_loss=False)
        self._mazes, self._render_mode, self._shown = mazes, render_mode, list[Any]()

    def reset(self) -> Array:
        first = super().reset()
        self.look()
        return first

    def restore(self, state: State) -> Array:
        """Refuses a place in a wall."""
        cells = len(self._mazes.goals)
        at = restored.between(state, "at", np.zeros(len(state["at"]), np.int64), 0, cells - 1)
        if (self._mazes.signs.reshape(-1)[at] == "#").any():
            raise ValueError("a lane is in a wall of the maze")
        return super().restore(state)

    def look(self) -> None:
        if self._render_mode:
            lanes = range(self.spec.lanes)
            self._shown = [rendered(self._mazes, self._render_mode, lane) for lane in lanes]

    def render_lane(self, lane: int) -> Any:
        """Text or pixels, if the environment was made with a render mode."""
        return self._shown[lane]


class MazeEnv(gymnasium.Env[np.int64, np.int64]):
    """One maze: ``gymnasium.make("manyhands/Maze-v0", resolution=2)``."""

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 10}  # noqa: RUF012

    def __init__(self, resolution: int = 1, render_mode: str | None = None) -> None:
        self._mazes, self.render_mode = Mazes(1, resolution), render_mode
        self.observation_space = spaces.Discrete(len(self._mazes.goals))
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._mazes.begin(np.ones(1, np.bool_), self.np_random)
        return self._mazes.at[0], {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, _ = self._mazes.play(np.array([action]), self.np_random)
        return self._mazes.at[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        return rendered(self._mazes, self.render_mode)


def serves(id: str) -> bool:
    return id == MAZE


def ids() -> list[str]:
    return [MAZE]


def check(config: Config) -> None:
    refuse_arguments(config, "Maze", "leave it out; --env.resolution is its size")


def make(wanted: Wanted) -> Environment:
    mazes = Mazes(wanted.lanes, wanted.config.resolution)
    return Maze(mazes, wanted.seed, render_mode=wanted.render_mode)


def render_modes(config: Config) -> tuple[str, ...]:  # noqa: ARG001
    return RENDER_MODES


if MAZE not in gymnasium.registry:
    gymnasium.register(MAZE, entry_point="manyhands.envs.maze:MazeEnv")
