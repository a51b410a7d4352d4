"""Any gymnasium environment with discrete actions: n of them in a list, stepped in one loop.

The loop over lanes is Python because the environments are: gymnasium's own vector classes
run the same loop, with automatic resets that cost a dead step.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error, spaces

from manyhands import envs
from manyhands.envs.episodes import (
    BREAKS_IN_A_ROW,
    Episodes,
    detail_of,
    failure,
    given_up,
    nonfinite_lane,
    warn_unless_replayed,
)
from manyhands.types import Array, BadRequest, Break, EnvSpec, Failure, State, Step

PICTURES_PER_S = 30.0  # where an environment does not say

Reader = Callable[[Any], Any]
"""Turns what an environment returned into what is written to a lane's row."""


class NotANumber(Exception):
    """What an environment returned is NaN or infinite."""


class Gym:
    """Every returned array is new: nothing handed out is written to again.

    An environment that raises in a step, or returns what is no number, gives way to another; the
    other lanes play on. One that cannot even begin is a failure.
    """

    def __init__(
        self,
        id: str,
        *,
        lanes: int,
        seed: np.random.SeedSequence,
        factory: Callable[[], Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._make: Callable[[], Any] = factory or partial(_made, id, render_mode)
        self._envs = [self._make() for _ in range(lanes)]
        self._breaks = [0] * lanes  # since an episode ended
        first = self._envs[0]
        self._shown: list[Any] | None = [None] * lanes if render_mode else None
        self.pictures_per_s = float(first.metadata.get("render_fps") or PICTURES_PER_S)
        name = id or (first.spec.id if first.spec else type(first.unwrapped).__name__)
        actions, self._first_action = _actions(name, first.action_space)
        shape, dtype, self._read = _reading(name, first.observation_space)
        self.spec = EnvSpec(name, lanes, shape, dtype, 1, actions)
        self._episodes = Episodes(lanes, seed)
        self._seen = self._blank()
        self._nobody = self._seen[:0]

    def reset(self) -> Array:
        self._seen = self._blank()
        everyone = np.arange(self.spec.lanes)
        for lane, seed in enumerate(self._episodes.begin(everyone).tolist()):
            try:
                self._open(lane, seed, self._seen)
            except Exception as error:
                raise self._raised(lane, error) from error
        self._look()
        return self._seen

    def step(self, actions: Array) -> Step:
        n = self.spec.lanes
        observation, reward = self._blank(), np.zeros(n, np.float32)
        discount, ended = np.ones(n, np.float32), np.zeros(n, np.bool_)
        read, finished, broken = self._read, list[int](), list[Break]()
        self._episodes.record(actions)
        chosen = actions + self._first_action if self._first_action else actions
        for lane, action in enumerate(chosen.tolist()):
            try:
                seen, gain, terminated, truncated, _ = self._envs[lane].step(action)
                observation[lane] = read(seen)
                reward[lane] = gain
            except Exception as error:
                broken.append(self._rebuild(lane, error, observation))
                reward[lane] = 0.0
                continue
            if terminated or truncated:
                finished.append(lane)
                discount[lane] = 0.0 if terminated else 1.0
        while found := nonfinite_lane(reward, observation):
            lane, what = found
            trouble = NotANumber(f"{what} is NaN or infinite")
            broken.append(self._rebuild(lane, trouble, observation))
            reward[lane], discount[lane] = 0.0, 1.0
            finished = [other for other in finished if other != lane]
        self._look()
        last = self._nobody
        if finished:
            last = observation[finished]  # a copy
            ended[finished] = True
            broken += self._begin(np.array(finished), observation)
        self._seen = observation
        return Step(observation, reward, discount, ended, last, tuple(broken))

    def state(self) -> State:
        return self._episodes.state(self._seen)

    def restore(self, state: State) -> Array:
        self._episodes.restore(state)
        self._seen = self._blank()
        for lane, taken in enumerate(self._episodes.actions):
            try:
                self._seen[lane] = self._replay(lane, taken)
            except Exception as error:
                raise self._raised(lane, error) from error
        warn_unless_replayed(self.spec.id, state, self._seen)
        return self._seen

    def render_lane(self, lane: int) -> Any:
        """A picture or a text, as the render mode has it; None in a window."""
        return None if self._shown is None else self._shown[lane]

    def _look(self) -> None:
        """Before an ended episode gives way to the next, so that its end can be seen."""
        if self._shown is None:
            return
        try:
            self._shown[:] = [env.render() for env in self._envs]
        except error.DependencyNotInstalled as missing:
            raise BadRequest(
                f"{self.spec.id} cannot be drawn: {missing}", 'pip install "manyhands[video]"'
            ) from missing

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _blank(self) -> Array:
        return np.zeros((self.spec.lanes, *self.spec.frame_shape), self.spec.frame_dtype)

    def _begin(self, lanes: Array, observation: Array) -> list[Break]:
        """New episodes in these lanes; writes their first observations."""
        broken = []
        for lane, seed in zip(lanes.tolist(), self._episodes.begin(lanes).tolist(), strict=True):
            self._breaks[lane] = 0
            try:
                self._open(lane, seed, observation)
            except Exception as error:
                broken.append(self._rebuild(lane, error, observation))
        return broken

    def _open(self, lane: int, seed: int, observation: Array) -> None:
        seen, _ = self._envs[lane].reset(seed=seed)
        observation[lane] = self._read(seen)
        if not np.isfinite(observation[lane]).all():
            raise NotANumber("the observation is NaN or infinite")

    def _rebuild(self, lane: int, error: Exception, observation: Array) -> Break:
        """Another environment in this one's place, at the beginning of an episode."""
        first = Break((lane,), self._raised(lane, error).what, detail_of(error))
        while True:
            self._breaks[lane] += 1
            if self._breaks[lane] >= BREAKS_IN_A_ROW:
                raise given_up(self._raised(lane, error)) from error
            try:
                with suppress(Exception):
                    self._envs[lane].close()
                self._envs[lane] = self._make()
                (seed,) = self._episodes.begin(np.array([lane])).tolist()
                self._open(lane, seed, observation)
                return first
            except Exception as again:
                error = again

    def _replay(self, lane: int, actions: Any) -> Any:
        env = self._envs[lane]
        seen, _ = env.reset(seed=int(self._episodes.seeds[lane]))
        for action in actions:
            seen, _, terminated, truncated, _ = env.step(action + self._first_action)
            if terminated or truncated:  # only where seed and actions do not decide the episode
                del self._episodes.actions[lane][:]
                seen, _ = env.reset(seed=int(self._episodes.seeds[lane]))
                break
        return self._read(seen)

    def _raised(self, lane: int, error: Exception) -> Failure:
        trouble = f"the environment raised {type(error).__name__} ({error})"
        trouble = str(error) if isinstance(error, NotANumber) else trouble
        seed, step = int(self._episodes.seeds[lane]), len(self._episodes.actions[lane])
        return failure(self.spec.id, trouble, lane=lane, seed=seed, step=step)


def render_modes(id: str) -> tuple[str, ...]:
    env = _made(id)
    env.close()
    return tuple(env.metadata.get("render_modes") or ())


def _made(id: str, render_mode: str | None = None) -> Any:
    """The checker is left out: it doubles the cost of a step. The time limit stays."""
    if id.startswith("own/"):
        raise BadRequest(
            "this run's environment was made by a Python function, which is not kept with it",
            "go on in Python: mh.resume(path, make_env=…), or mh.load(path) and your own loop",
        )
    if ":" not in id and id not in gymnasium.registry:
        raise envs.unknown(id)
    if ":" in id and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # a module beside you, as `python -m` would find it
    try:
        with warnings.catch_warnings():  # Box2D's import crashes where these are errors
            warnings.filterwarnings("ignore", "builtin type [sS]wig", DeprecationWarning)
            wanted: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
            return gymnasium.make(id, disable_env_checker=True, **wanted)
    except error.DependencyNotInstalled as missing:
        if "box2d" in str(missing).lower():
            raise BadRequest(
                f"{id} needs Box2D, which is not installed.", 'pip install "manyhands[box2d]".'
            ) from missing
        raise BadRequest(f"{id} cannot be made: a package is missing.", str(missing)) from missing
    except ModuleNotFoundError as missing:
        told = str(missing).rstrip(".")
        raise BadRequest(f"{id} cannot be made: {told}.", "Install that module.") from missing
    except error.Error as refused:
        raise BadRequest(f"{id!r} cannot be made: {refused}.", "Correct env.id.") from refused


def _actions(id: str, space: Any) -> tuple[int, int]:
    """How many actions there are, and the number gymnasium gives the first."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), int(space.start)
    kind = type(space).__name__
    told = "continuous actions (Box)" if isinstance(space, spaces.Box) else f"{kind} actions"
    raise BadRequest(
        f"{id} has {told}; manyhands trains discrete ones.",
        "Choose one with a Discrete action space, or wrap yours so that it has one.",
    )


def _reading(id: str, space: Any) -> tuple[tuple[int, ...], str, Reader]:
    """The shape and type of a lane's row, and how an observation becomes one."""
    if isinstance(space, spaces.Discrete):
        rows, start = np.eye(int(space.n), dtype=np.float32), int(space.start)
        return (int(space.n),), "float32", lambda seen: rows[seen - start]
    if isinstance(space, spaces.Box):
        shape = tuple(int(length) for length in space.shape)
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        if len(shape) == 1:
            return shape, "float32", lambda seen: seen
        if len(shape) == 2:
            return (1, *shape), dtype, lambda seen: seen
        if len(shape) == 3 and shape[2] > shape[0]:  # the channels already come first
            return shape, dtype, lambda seen: seen
        if len(shape) == 3:
            height, width, channels = shape
            return (channels, height, width), dtype, lambda seen: seen.transpose(2, 0, 1)
    raise BadRequest(
        f"{id} has observations manyhands cannot read: {space}.",
        "They may be a vector, an image or Discrete; wrap the environment, "
        "for example in gymnasium.wrappers.FlattenObservation.",
    )
