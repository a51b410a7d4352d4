"""Atari, with the vector environment of ale_py (C++ threads). Only this file imports ale_py.

The library returns new arrays from every call, so we need no copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from manyhands.envs import Config, Wanted, observations, refuse_arguments, unknown
from manyhands.envs.episodes import (
    BREAKS_IN_A_ROW,
    Episodes,
    given_up,
    warn_unless_replayed,
)
from manyhands.types import Array, BadRequest, Break, Environment, EnvSpec, Failure, State, Step
from manyhands.types.errors import text_of, trace_of

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

NOOP = 0
FRAMES_PER_S = 60  # of the Atari console
SCREEN = (210, 160)
SEED_AFTER = 5000
"""Agent steps between two seeds of a lane. A seeded reset costs as much as some 200 agent steps.

It loads the cartridge again, which fills a table of blended colours (60 ms of CPU time, ale-py
0.12; `envs.EMULATOR_S`). Every emulator also does so when it is made, one after the other, and when
it is first seeded, by threads.
"""


def serves(id: str) -> bool:
    """Also any word that gymnasium does not know: ale_py is not asked."""
    is_word = bool(id) and not any(mark in id for mark in (":", "/", "-v"))
    return _is_surely_atari(id) or (is_word and id not in gymnasium.registry)


def _is_surely_atari(id: str) -> bool:
    return id.startswith("ALE/") or "NoFrameskip-v" in id


def ids() -> list[str]:
    """The emulator's games by their short names; none where its extra is not installed."""
    try:
        return games()
    except ImportError:
        return []


def check(config: Config) -> None:
    refuse_arguments(config, f"the Atari game {config.id}")


def make(wanted: Wanted) -> Atari:
    config = wanted.config
    try:
        game = game_of(config.id)
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != "ale_py":
            raise
        raise _not_installed(config.id) from error
    if game is None:
        raise unknown(config.id)
    return Atari(
        game,
        config,
        lanes=wanted.lanes,
        seed=wanted.seed,
        threads=wanted.threads,
        life_loss=wanted.life_loss,
        filmed=wanted.render_mode is not None,
    )


def _not_installed(id: str) -> BadRequest:
    sure = _is_surely_atari(id)
    what = f"{id!r} is an Atari game" if sure else f"{id!r} is unknown to gymnasium"
    guess = "" if sure else f" If it is no Atari game: {unknown(id).remedy}"
    return BadRequest(
        f"{what}, and ale_py is not installed.", f'pip install "manyhands[atari]".{guess}'
    )


def render_modes(config: Config) -> tuple[str, ...]:  # noqa: ARG001
    return ("rgb_array",)


def games() -> list[str]:
    from ale_py import roms

    names: list[str] = roms.get_all_rom_ids()
    return names


def game_of(id: str) -> str | None:
    """``space_invaders`` for space_invaders, spaceinvaders, ALE/SpaceInvaders-v5, ….

    Frame skip, sticky actions and the rest come from the config, not from the id.
    """
    bare = re.sub(r"(NoFrameskip)?(-v\d+)?$", "", id.removeprefix("ALE/"))
    known = {name.replace("_", ""): name for name in games()}
    return known.get(bare.lower().replace("_", ""))


class Atari(Environment):
    def __init__(
        self,
        game: str,
        config: Config,
        *,
        lanes: int,
        seed: np.random.SeedSequence,
        threads: int,
        life_loss: bool,
        filmed: bool = False,
    ) -> None:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        emulators = partial(_emulators, game, config, lanes=lanes, threads=threads)
        self._make: Callable[[], Any] = (
            (lambda: Filmed(emulators(), emulators(camera=True))) if filmed else emulators
        )
        self._env: Any = self._make()
        self._breaks = 0  # since an episode ended
        self.pictures_per_s = FRAMES_PER_S / config.frame_skip
        size = (config.frame_size, config.frame_size)
        self.spec = EnvSpec(
            id=game,
            lanes=lanes,
            frame_shape=size if config.stack > 1 else (1, *size),  # networks need a channel axis
            frame_dtype="uint8",
            stack=config.stack,
            actions=len(self._env.ale.get_action_set()),
            frames_per_step=config.frame_skip,
            raw=observations.Reading(observations.SCREEN, SCREEN).state(),
        )
        self._life_loss = life_loss
        self._lives = np.zeros(lanes, np.int32)
        self._episodes = Episodes(lanes, seed, seed_after=SEED_AFTER)
        self._seen = np.zeros((lanes, *self.spec.observation_shape), np.uint8)

    def reset(self) -> Array:
        lanes = np.arange(self.spec.lanes)
        self._seen, info = self._env.reset(seed=self._episodes.begin(lanes, reseed=True))
        self._lives = info["lives"]
        return self._seen

    def step(self, actions: Array) -> Step:
        actions = self._in_range(actions)
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except RuntimeError as error:  # from the emulator's threads
            return self._rebuilt(error)
        self._episodes.record(actions)
        ended = terminated | truncated
        over = terminated | (info["lives"] < self._lives) if self._life_loss else terminated
        last = observation[ended]  # a mask copies
        if len(last):
            self._breaks = 0
            seeds = self._episodes.begin(np.flatnonzero(ended))
            observation, info = self._env.reset(seed=seeds, options={"reset_mask": ended})
        self._lives, self._seen = info["lives"], observation
        discount = np.where(over, np.float32(0), np.float32(1))
        return Step(observation, reward.astype(np.float32), discount, ended, last)

    def _rebuilt(self, error: Exception) -> Step:
        """Replaces all emulators after an error in one of them."""
        self._breaks += 1
        found = Failure(
            f"{self.spec.id}: the emulator raised {type(error).__name__} ({text_of(error)})."
        )
        if self._breaks >= BREAKS_IN_A_ROW:
            raise given_up(found) from error
        self._env = self._make()
        n, observation = self.spec.lanes, self.reset()
        broken = Break(tuple(range(n)), found.what, trace_of(error))
        reward, discount = np.zeros(n, np.float32), np.ones(n, np.float32)
        last = observation[:0]
        return Step(observation, reward, discount, np.zeros(n, bool), last, (broken,))

    def state(self) -> State:
        return self._episodes.state(self._seen)

    def restore(self, state: State) -> Array:
        """Replays the actions of all lanes. Lanes step together, so the replays must END together.

        A lane with fewer actions first makes no-ops. Then a masked reset seeds it.
        """
        self._episodes.restore(state, self.spec.actions)
        seeds, taken = self._episodes.seeds, self._episodes.actions
        longest = max(len(actions) for actions in taken)
        starts = np.array([longest - len(actions) for actions in taken])
        script = np.full((longest, self.spec.lanes), NOOP, np.int32)
        for lane, start in enumerate(starts):
            script[start:, lane] = taken[lane]
        self._seen, info = self._env.reset(seed=seeds)
        for now, actions in enumerate(script, start=1):
            self._seen, _, terminated, truncated, info = self._env.step(actions)
            due = terminated | truncated | (starts == now)
            if due.any():
                chosen = np.where(starts == now, seeds, -1)[due]
                self._seen, info = self._env.reset(seed=chosen, options={"reset_mask": due})
        self._lives = info["lives"]
        warn_unless_replayed(self.spec.id, state, self._seen)
        return self._seen

    def render_lane(self, lane: int) -> Array:
        """The screen [210, 160, 3], if the environment was made with a camera."""
        picture: Array = self._env.pictures[lane]
        return picture

    def close(self) -> None:
        del self._env  # the library's close does nothing; its threads end with the object

    def _in_range(self, actions: Array) -> Array:
        """Refuses actions out of range: the emulator would hang and ignore Ctrl-C."""
        actions = np.ascontiguousarray(actions, np.int32)
        if actions.shape != (self.spec.lanes,):
            raise ValueError(f"{self.spec.lanes} actions expected, not {actions.shape}")
        if actions.min() < 0 or actions.max() >= self.spec.actions:
            raise ValueError(f"actions are 0 to {self.spec.actions - 1}, not {actions.tolist()}")
        return actions


class Filmed:
    """Emulators, and a second set in colour and full size with the same seeds and actions.

    Seeds and actions determine everything, also no-ops and sticky actions.
    """

    def __init__(self, played: AtariVectorEnv, camera: AtariVectorEnv) -> None:
        self._played, self._camera, self.ale = played, camera, played.ale
        self.pictures: Array = np.zeros(0)

    def reset(self, **how: Any) -> Any:
        seen, _ = self._camera.reset(**how)
        if "options" not in how:  # otherwise we still show an episode's end
            self.pictures = seen[:, -1]
        return self._played.reset(**how)

    def step(self, actions: Array) -> Any:
        seen, reward, *_ = self._camera.step(actions)
        self.pictures = seen[:, -1]
        played = self._played.step(actions)
        if not np.array_equal(reward, played[1]):
            raise Failure("the video differs from the game played", "Report it, with the run.")
        return played


def _emulators(
    game: str, config: Config, *, lanes: int, threads: int, camera: bool = False
) -> AtariVectorEnv:
    """Sets every option: the library's two constructors have different defaults."""
    from ale_py.vector_env import AtariVectorEnv

    height, width = SCREEN if camera else (config.frame_size, config.frame_size)
    config = replace(config, stack=1) if camera else config
    return AtariVectorEnv(
        game,
        lanes,
        batch_size=0,  # all lanes, in order
        num_threads=threads,
        thread_affinity_offset=-1,
        max_num_frames_per_episode=config.max_frames,
        repeat_action_probability=config.sticky,
        full_action_space=False,
        continuous=False,
        autoreset_mode="NextStep",  # masked resets need it; we reset earlier
        img_height=height,
        img_width=width,
        grayscale=not camera,
        stack_num=config.stack,
        frameskip=config.frame_skip,
        maxpool=True,
        noop_max=config.noop_max,  # 30: 0 to 28 frames; Nature: up to 30
        episodic_life=False,  # True would reset the whole game
        life_loss_info=False,  # True would end the episode at a lost life
        reward_clipping=False,  # True would lose the score
        use_fire_reset=True,  # once per game; after a lost life the agent must press it
    )
