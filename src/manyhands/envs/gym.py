"""Any gymnasium environment with discrete actions: n of them, stepped in one Python loop.

Gymnasium's vector classes run the same loop, but their automatic resets cost a step without an
action.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error

from manyhands.envs import Config, Wanted, closing, making
from manyhands.envs.episodes import (
    BREAKS_IN_A_ROW,
    Episodes,
    failure,
    given_up,
    nonfinite_lane,
    warn_unless_replayed,
)
from manyhands.envs.observations import reading_of
from manyhands.envs.parts import Parts, note, parts_of
from manyhands.types import Array, BadRequest, Break, Environment, EnvSpec, Failure, State, Step
from manyhands.types.errors import text_of, trace_of

EPISODE_METRICS = "episode_metrics"
MOST_NUMBERS, NAME_BYTES = 24, 60  # so that they fit into a message
OTHER_WAYS = ("ale_py", "gymnasium.envs.phys2d", "gymnasium.envs.tabular")  # makers
LARGEST = sys.float_info.max
PICTURES_PER_S = 30.0  # default


class NotANumber(Exception):
    """An environment returned NaN or infinity."""


class Gym(Environment):
    """Every returned array is new and never written to again.

    An environment that raises in a step, or returns NaN or infinity, is replaced. The other lanes
    continue. An environment that cannot be made is a failure.
    """

    def __init__(
        self,
        id: str,
        *,
        lanes: int,
        seed: np.random.SeedSequence,
        obs_key: str = "",
        factory: Callable[[], Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self._make: Callable[[], Any] = factory or partial(making.made, id)
        self._envs = [self._first(id) for _ in range(lanes)]
        self._breaks = [0] * lanes  # since an episode ended
        first = making.env_of(self._envs[0], id)
        self._shown: list[Any] | None = [None] * lanes if render_mode else None
        self.pictures_per_s = float(first.metadata.get("render_fps") or PICTURES_PER_S)
        name = id or (first.spec.id if first.spec else type(first.unwrapped).__name__)
        actions, self._first_action = making.actions(name, first.action_space)
        given, plain = parts_of(name, first.observation_space, obs_key)
        reading, dtype = reading_of(name, plain)
        self._read = read = reading.strict_reader(dtype)
        if given is not None:
            joined = given.reader()  # checks whole numbers itself
            self._read = joined if given.indexed else lambda seen: read(joined(seen))
        self.spec = EnvSpec(
            name,
            lanes,
            reading.frame_shape(),
            dtype,
            1,
            actions,
            first_action=self._first_action,
            raw={**reading.state(), **_told(first.observation_space, given)},
            counts=given.counts if given is not None else (),
        )
        self._episodes = Episodes(lanes, seed)
        self._seen = self._blank()
        self._no_last = self._seen[:0]

    def reset(self) -> Array:
        self._seen = self._blank()
        lanes = np.arange(self.spec.lanes)
        for lane, seed in enumerate(self._episodes.begin(lanes).tolist()):
            try:
                self._open(lane, seed, self._seen)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also sys.exit and panics of native code
                raise self._raised(lane, error) from error
        self._look()
        return self._seen

    def step(self, actions: Array) -> Step:
        n = self.spec.lanes
        observation, reward = self._blank(), np.zeros(n, np.float32)
        discount, ended = np.ones(n, np.float32), np.zeros(n, np.bool_)
        read, finished, broken = self._read, list[int](), list[Break]()
        told = list[tuple[int, Mapping[str, float]]]()
        self._episodes.record(actions)
        chosen = actions + self._first_action if self._first_action else actions
        for lane, action in enumerate(chosen.tolist()):
            try:
                seen, gain, terminated, truncated, info = self._envs[lane].step(action)
                observation[lane] = read(seen)
                reward[lane] = gain
                if terminated or truncated:  # an array raises here
                    finished.append(lane)
                    discount[lane] = 0.0 if terminated else 1.0
                    if own := numbers(info):
                        told.append((lane, own))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                broken.append(self._rebuild(lane, error, observation))
                reward[lane] = 0.0
        while found := nonfinite_lane(reward, observation):
            lane, what = found
            trouble = NotANumber(f"{what} is NaN or infinite")
            broken.append(self._rebuild(lane, trouble, observation))
            reward[lane], discount[lane] = 0.0, 1.0
            finished = [other for other in finished if other != lane]
        self._look()
        last = self._no_last
        if finished:
            last = observation[finished]  # a copy
            ended[finished] = True
            broken += self._begin(np.array(finished), observation)
        self._seen = observation
        kept = tuple(one for one in told if ended[one[0]])
        return Step(observation, reward, discount, ended, last, tuple(broken), kept)

    def state(self) -> State:
        return self._episodes.state(self._seen)

    def restore(self, state: State) -> Array:
        self._episodes.restore(state, self.spec.actions)
        self._seen = self._blank()
        for lane, taken in enumerate(self._episodes.actions):
            try:
                self._seen[lane] = self._replay(lane, taken)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also sys.exit and panics of native code
                raise self._raised(lane, error) from error
        warn_unless_replayed(self.spec.id, state, self._seen)
        return self._seen

    def render_lane(self, lane: int) -> Any:
        """A picture or a text, depending on the render mode; None in a window."""
        return None if self._shown is None else self._shown[lane]

    def _look(self) -> None:
        """Renders before ended episodes are reset, so that their last frames can be seen."""
        if self._shown is None:
            return
        try:
            self._shown[:] = [env.render() for env in self._envs]
        except error.DependencyNotInstalled as missing:
            raise BadRequest(
                f"{self.spec.id} cannot be drawn: {missing}", 'pip install "manyhands[video]"'
            ) from missing

    def close(self) -> None:
        closing.close_and_report(self.spec.id, self._envs, here=self._shown is not None)

    def _blank(self) -> Array:
        return np.zeros((self.spec.lanes, *self.spec.frame_shape), self.spec.frame_dtype)

    def _begin(self, lanes: Array, observation: Array) -> list[Break]:
        """Begins episodes in these lanes; writes their first observations."""
        broken = []
        for lane, seed in zip(lanes.tolist(), self._episodes.begin(lanes).tolist(), strict=True):
            self._breaks[lane] = 0
            try:
                self._open(lane, seed, observation)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                broken.append(self._rebuild(lane, error, observation))
        return broken

    def _open(self, lane: int, seed: int, observation: Array) -> None:
        seen, _ = self._envs[lane].reset(seed=seed)
        observation[lane] = self._read(seen)
        if not np.isfinite(observation[lane]).all():
            raise NotANumber("the observation is NaN or infinite")

    def _first(self, id: str) -> Any:
        """Makes one environment. Its exceptions pass, but sys.exit becomes a failure."""
        try:
            return self._make()
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            what = f"{id}: the environment raised {type(error).__name__} ({text_of(error)})"
            raise Failure(f"{what} when it was made.", "Fix its constructor.") from error

    def _rebuild(self, lane: int, error: BaseException, observation: Array) -> Break:
        """Replaces a broken environment by a new one and begins an episode."""
        first = Break((lane,), self._raised(lane, error).what, trace_of(error))
        while True:
            self._breaks[lane] += 1
            if self._breaks[lane] >= BREAKS_IN_A_ROW:
                raise given_up(self._raised(lane, error)) from error
            try:
                closing.close([self._envs[lane]], here=self._shown is not None)
                self._envs[lane] = self._make()
                (seed,) = self._episodes.begin(np.array([lane])).tolist()
                self._open(lane, seed, observation)
                return first
            except KeyboardInterrupt:
                raise
            except BaseException as again:
                error = again

    def _replay(self, lane: int, actions: Any) -> Any:
        env = self._envs[lane]
        seen, _ = env.reset(seed=int(self._episodes.seeds[lane]))
        for action in actions:
            seen, _, terminated, truncated, _ = env.step(action + self._first_action)
            if terminated or truncated:  # the environment depends on more than seed and actions
                del self._episodes.actions[lane][:]
                seen, _ = env.reset(seed=int(self._episodes.seeds[lane]))
                break
        return self._read(seen)

    def _raised(self, lane: int, error: BaseException) -> Failure:
        trouble = f"the environment raised {type(error).__name__} ({text_of(error)})"
        trouble = str(error) if isinstance(error, NotANumber) else trouble
        seed, step = int(self._episodes.seeds[lane]), len(self._episodes.actions[lane])
        return failure(self.spec.id, trouble, lane=lane, seed=seed, step=step)


def numbers(info: Any) -> dict[str, float]:
    """The numbers in ``info["episode_metrics"]`` of an ended episode, up to `MOST_NUMBERS`."""
    told = info.get(EPISODE_METRICS) if isinstance(info, Mapping) else None
    if not isinstance(told, Mapping):
        return {}
    kinds = (int, float, np.integer, np.floating, np.bool_)
    short = (
        name
        for name, value in told.items()
        if isinstance(value, kinds) and isinstance(name, str) and name.isprintable()
        if not isinstance(value, int) or abs(value) <= LARGEST  # others are floats already
        if len(name.encode(errors="replace")) <= NAME_BYTES
    )
    return {name: float(told[name]) for name in islice(short, MOST_NUMBERS)}


def serves(id: str) -> bool:  # noqa: ARG001
    """Any id: it is asked last (`ANY`)."""
    return True


def ids() -> list[str]:
    made_by = {id: str(spec.entry_point) for id, spec in gymnasium.registry.items()}
    return [id for id, maker in made_by.items() if not maker.startswith(OTHER_WAYS)]


def check(config: Config) -> None:
    """gymnasium takes any argument, or refuses it when the environment is made."""


def make(wanted: Wanted) -> Gym:
    from manyhands.envs import carts  # it imports this file

    if carts.serves(wanted):
        return carts.Carts(lanes=wanted.lanes, seed=wanted.seed, episode_steps=wanted.episode_steps)
    return Gym(
        wanted.config.id,
        lanes=wanted.lanes,
        seed=wanted.seed,
        obs_key=wanted.config.obs_key,
        factory=making.maker(wanted),
        render_mode=wanted.render_mode,
    )


def render_modes(config: Config) -> tuple[str, ...]:
    env = making.made(config.id, config.kwargs)
    closing.close_and_report(config.id, [env])
    return tuple(env.metadata.get("render_modes") or ())


def _told(space: Any, parts: Parts | None) -> State:
    return {} if parts is None else {"parts": parts.state(), "note": note(space, parts)}
