"""Environments of a microsecond a step, for tests and first tries. No loop over lanes.

A `Game` keeps its whole state in named arrays with one row a lane; `Toy` does the rest.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import numpy as np

from manyhands.envs.episodes import failure, nonfinite_lane, require_lanes
from manyhands.types import Array, BadRequest, Environment, EnvSpec, State, Step, restored


class Outcome(NamedTuple):
    """[n] each: the reward, and how the episode stands."""

    reward: Array  # float32
    terminated: Array
    truncated: Array
    lost: Array  # a life


class Game(Protocol):
    spec: EnvSpec
    arrays: dict[str, Array]

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:
        """New episodes where the mask says so."""

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome: ...

    def observe(self) -> Array:
        """A new array."""


class Toy:
    def __init__(self, game: Game, seed: np.random.SeedSequence, *, life_loss: bool) -> None:
        self.spec, self._game, self._life_loss = game.spec, game, life_loss
        self._seed, self._rng = seed, np.random.default_rng(seed)

    def reset(self) -> Array:
        self._game.begin(np.ones(self.spec.lanes, np.bool_), self._rng)
        return self._game.observe()

    def step(self, actions: Array) -> Step:
        reward, terminated, truncated, lost = self._game.play(actions, self._rng)
        ended = terminated | truncated
        over = terminated | lost if self._life_loss else terminated
        observation = self._game.observe()
        self._check(reward, observation)
        last = observation[:0]
        if np.count_nonzero(ended):
            last = observation[ended]
            self._game.begin(ended, self._rng)
            observation = self._game.observe()
        return Step(observation, reward, (~over).astype(np.float32), ended, last)

    def state(self) -> State:
        kept = {name: rows.copy() for name, rows in self._game.arrays.items()}
        return {"rng": self._rng.bit_generator.state, **kept}

    def restore(self, state: State) -> Array:
        require_lanes(len(state["steps"]), self.spec.lanes)
        self._rng.bit_generator.state = state["rng"]
        for name, rows in self._game.arrays.items():
            rows[:] = restored.between(state, name, rows, 0, restored.MOST)
        return self._game.observe()

    def close(self) -> None:
        pass

    def _check(self, reward: Array, observation: Array) -> None:
        found = nonfinite_lane(reward, observation)
        if found:
            lane, what = found
            step, entropy = int(self._game.arrays["steps"][lane]), self._seed.entropy
            seed = entropy if isinstance(entropy, int) else 0  # one stream serves all lanes
            trouble = f"{what} is NaN or infinite"
            raise failure(self.spec.id, trouble, lane=lane, seed=seed, step=step)


class Identity:
    """The observation shows which action pays 1. Ten steps, then cut off."""

    actions, length = 4, 10

    def __init__(self, id: str, lanes: int) -> None:
        self.spec = EnvSpec(id, lanes, (self.actions,), "float32", 1, self.actions)
        self.paying = np.zeros(lanes, np.int64)
        self.steps = np.zeros(lanes, np.int64)
        self._shown = np.eye(self.actions, dtype=np.float32)
        self._never = np.zeros(lanes, np.bool_)
        self.arrays: dict[str, Array] = {"paying": self.paying, "steps": self.steps}

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:
        self.paying[lanes] = rng.integers(self.actions, size=lanes.sum())
        self.steps[lanes] = 0

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        reward = (actions == self.paying).astype(np.float32)
        self.steps += 1
        self.paying[:] = rng.random(len(self.paying)) * self.actions
        return Outcome(reward, self._never, self.steps == self.length, self._never)

    def observe(self) -> Array:
        return self._shown[self.paying]


class Nan(Identity):
    """Identity whose reward is NaN once an episode has lasted 30 steps."""

    length = 1000

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        outcome = super().play(actions, rng)
        reward = np.where(self.steps > 30, np.float32(np.nan), outcome.reward)
        return outcome._replace(reward=reward)


class Slow(Identity):
    """Identity that takes five milliseconds a step."""

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        time.sleep(0.005)
        return super().play(actions, rng)


class Chain:
    """Walk right: the last cell pays 1 and ends the episode. Cut off after 4 steps a cell."""

    cells = 8

    def __init__(self, id: str, lanes: int) -> None:
        self.spec = EnvSpec(id, lanes, (self.cells,), "float32", 1, 2)
        self.at = np.zeros(lanes, np.int64)
        self.steps = np.zeros(lanes, np.int64)
        self.arrays: dict[str, Array] = {"at": self.at, "steps": self.steps}

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:  # noqa: ARG002
        self.at[lanes] = 0
        self.steps[lanes] = 0

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:  # noqa: ARG002
        self.at[:] = np.clip(self.at + np.where(actions == 1, 1, -1), 0, self.cells - 1)
        self.steps += 1
        arrived = self.at == self.cells - 1
        late = (self.steps == 4 * self.cells) & ~arrived
        return Outcome(arrived.astype(np.float32), arrived, late, np.zeros_like(arrived))

    def observe(self) -> Array:
        return np.eye(self.cells, dtype=np.float32)[self.at]


class Frames:
    """Small pictures like the emulator's: stacked, padded with zeros, with lives and cut-offs.

    Noise in which the columns of the action that pays are bright.
    """

    actions, side, stack, lives_at_first = 4, 8, 4, 3

    def __init__(self, id: str, lanes: int) -> None:
        frame = (self.side, self.side)
        self.spec = EnvSpec(id, lanes, frame, "uint8", self.stack, self.actions)
        self.stacks = np.zeros((lanes, self.stack, *frame), np.uint8)
        self.paying = np.zeros(lanes, np.int64)
        self.lives = np.zeros(lanes, np.int64)
        self.steps = np.zeros(lanes, np.int64)
        self.arrays: dict[str, Array] = {
            "stacks": self.stacks, "paying": self.paying, "lives": self.lives, "steps": self.steps
        }  # fmt: skip

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:
        self.stacks[lanes] = 0
        self.stacks[lanes, -1], self.paying[lanes] = self._frames(int(lanes.sum()), rng)
        self.lives[lanes] = self.lives_at_first
        self.steps[lanes] = 0

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        reward = (actions == self.paying).astype(np.float32)
        lost = rng.random(len(reward)) < 0.1
        self.lives -= lost
        self.steps += 1
        self.stacks[:, :-1] = self.stacks[:, 1:].copy()
        self.stacks[:, -1], self.paying[:] = self._frames(len(reward), rng)
        terminated = self.lives == 0
        truncated = (rng.random(len(reward)) < 0.02) & ~terminated
        return Outcome(reward, terminated, truncated, lost)

    def observe(self) -> Array:
        return self.stacks.copy()

    def _frames(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        frames = rng.integers(1, 100, size=(n, self.side, self.side), dtype=np.uint8)
        paying = rng.integers(self.actions, size=n)
        bright = np.arange(self.side) // (self.side // self.actions) == paying[:, None]
        return np.where(bright[:, None, :], np.uint8(255), frames), paying


GAMES: dict[str, type[Identity] | type[Chain] | type[Frames]] = {
    "toy/identity": Identity,
    "toy/chain": Chain,
    "toy/frames": Frames,
    "toy/nan": Nan,
    "toy/slow": Slow,
}


def make(id: str, *, lanes: int, seed: np.random.SeedSequence, life_loss: bool) -> Environment:
    if id not in GAMES:
        raise BadRequest(f"There is no environment called {id!r}.", f"Toys: {', '.join(GAMES)}.")
    return Toy(GAMES[id](id, lanes), seed, life_loss=life_loss)
