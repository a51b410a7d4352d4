"""Very fast environments for tests and first tries, without a loop over lanes.

A `Game` holds its state in named arrays, one row per lane; `Toy` does the rest.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import numpy as np

from manyhands.envs import Config, Wanted, refuse_arguments
from manyhands.envs.episodes import failure, nonfinite_lane, require_lanes
from manyhands.types import Array, BadRequest, Environment, EnvSpec, State, Step, restored


class Outcome(NamedTuple):
    """[n] each: the reward, and whether the episode ended."""

    reward: Array  # float32
    terminated: Array
    truncated: Array
    lost: Array  # a life


class Game(Protocol):
    spec: EnvSpec
    arrays: dict[str, Array]

    def begin(self, lanes: Array, rng: np.random.Generator) -> None:
        """Begins episodes in the lanes of the mask."""

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome: ...

    def observe(self) -> Array:
        """A new array."""


class Toy(Environment):
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
        self.look()
        last = observation[:0]
        if np.count_nonzero(ended):
            last = observation[ended]
            self._game.begin(ended, self._rng)
            observation = self._game.observe()
        return Step(observation, reward, (~over).astype(np.float32), ended, last)

    def look(self) -> None:
        """Called before ended episodes are reset: their ends can be drawn here."""

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
            seed = entropy if isinstance(entropy, int) else 0  # all lanes share one generator
            trouble = f"{what} is NaN or infinite"
            raise failure(self.spec.id, trouble, lane=lane, seed=seed, step=step)


class Identity:
    """The observation shows which action gives reward 1. Truncated after ten steps."""

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


class Numbers(Identity):
    """Identity whose observation is the number of the paying action."""

    def __init__(self, id: str, lanes: int) -> None:
        super().__init__(id, lanes)
        counts = (self.actions,)
        self.spec = EnvSpec(id, lanes, (1,), "int32", 1, self.actions, counts=counts)

    def observe(self) -> Array:
        return self.paying[:, None].astype(np.int32)


class Nan(Identity):
    """Identity whose reward is NaN once an episode has lasted 30 steps."""

    length = 1000

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        outcome = super().play(actions, rng)
        reward = np.where(self.steps > 30, np.float32(np.nan), outcome.reward)
        return outcome._replace(reward=reward)


class Slow(Identity):
    """Identity whose step takes five milliseconds."""

    def play(self, actions: Array, rng: np.random.Generator) -> Outcome:
        time.sleep(0.005)
        return super().play(actions, rng)


class Chain:
    """Walk right: the last cell gives 1 and ends the episode. Truncated after 4 steps per cell."""

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
    """Small pictures like the emulator's: stacked, padded with zeros, with lives and truncation.

    They are noise, in which the columns of the rewarded action are bright.
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
    "toy/numbers": Numbers,
    "toy/chain": Chain,
    "toy/frames": Frames,
    "toy/nan": Nan,
    "toy/slow": Slow,
}


def serves(id: str) -> bool:
    return id.startswith("toy/")


def ids() -> list[str]:
    return list(GAMES)


def check(config: Config) -> None:
    refuse_arguments(config, f"the toy {config.id}")


def make(wanted: Wanted) -> Environment:
    id = wanted.config.id
    if id not in GAMES:
        raise BadRequest(f"There is no environment called {id!r}.", f"Toys: {', '.join(GAMES)}.")
    return Toy(GAMES[id](id, wanted.lanes), wanted.seed, life_loss=wanted.life_loss)


def render_modes(config: Config) -> tuple[str, ...]:  # noqa: ARG001
    return ()
