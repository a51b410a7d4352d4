"""Atari, on the emulator's own vector environment (C++ threads). Only this file knows ale_py.

The library returns new arrays from every call, so nothing here is copied to be kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ale_py
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from manyhands.envs import Config, observations
from manyhands.envs.episodes import (
    BREAKS_IN_A_ROW,
    Episodes,
    given_up,
    warn_unless_replayed,
)
from manyhands.types import Array, Break, EnvSpec, Failure, State, Step
from manyhands.types.errors import text_of, trace_of

NOOP = 0
FRAMES_PER_S = 60  # of the console
SCREEN = (210, 160)
SEED_AFTER = 5000
"""A seeded reset loads the cartridge again, which costs as much as some 200 agent steps.

To load it is to fill a table of blended colours (60 ms of a processor, ale-py 0.12). Every emulator
does so when it is made, one after the other, and again when it is first seeded, by threads.
"""


def games() -> list[str]:
    names: list[str] = roms.get_all_rom_ids()
    return names


def game_of(id: str) -> str | None:
    """``space_invaders`` from itself, spaceinvaders, ALE/SpaceInvaders-v5 and the like.

    Only the game is taken from an id: frame skip, sticky actions and so on are the config's.
    """
    bare = re.sub(r"(NoFrameskip)?(-v\d+)?$", "", id.removeprefix("ALE/"))
    known = {name.replace("_", ""): name for name in games()}
    return known.get(bare.lower().replace("_", ""))


class Atari:
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
            frame_shape=size if config.stack > 1 else (1, *size),  # a network wants a channel
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
        everyone = np.arange(self.spec.lanes)
        self._seen, info = self._env.reset(seed=self._episodes.begin(everyone, anew=True))
        self._lives = info["lives"]
        return self._seen

    def step(self, actions: Array) -> Step:
        actions = self._in_range(actions)
        try:
            observation, reward, terminated, truncated, info = self._env.step(actions)
        except RuntimeError as error:  # of the emulator's threads
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
        """One emulator broke, and with it all: others in their place."""
        self._breaks += 1
        found = Failure(
            f"{self.spec.id}: the emulator raised {type(error).__name__} ({text_of(error)})."
        )
        if self._breaks >= BREAKS_IN_A_ROW:
            raise given_up(found) from error
        self._env = self._make()
        n, observation = self.spec.lanes, self.reset()
        broken = Break(tuple(range(n)), found.what, trace_of(error))
        nothing, goes_on = np.zeros(n, np.float32), np.ones(n, np.float32)
        nobody = observation[:0]
        return Step(observation, nothing, goes_on, np.zeros(n, bool), nobody, (broken,))

    def state(self) -> State:
        return self._episodes.state(self._seen)

    def restore(self, state: State) -> Array:
        """All lanes step together, so what is played again must END together.

        A lane does no-ops until it is its turn, and is then seeded by masked reset.
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
                anew = np.where(starts == now, seeds, -1)[due]
                self._seen, info = self._env.reset(seed=anew, options={"reset_mask": due})
        self._lives = info["lives"]
        warn_unless_replayed(self.spec.id, state, self._seen)
        return self._seen

    def render_lane(self, lane: int) -> Array:
        """[210, 160, 3], where the environment was made to be filmed."""
        picture: Array = self._env.pictures[lane]
        return picture

    def close(self) -> None:
        del self._env  # the library's own close does nothing; its threads end with the object

    def _in_range(self, actions: Array) -> Array:
        """Refuses actions out of range: the emulator would hang and ignore Ctrl-C."""
        actions = np.ascontiguousarray(actions, np.int32)
        if actions.shape != (self.spec.lanes,):
            raise ValueError(f"{self.spec.lanes} actions expected, not {actions.shape}")
        if actions.min() < 0 or actions.max() >= self.spec.actions:
            raise ValueError(f"actions are 0 to {self.spec.actions - 1}, not {actions.tolist()}")
        return actions


class Filmed:
    """Emulators, and a second set in colour and full size that gets the same seeds and actions.

    Seeds and actions decide all, no-ops at the start and sticky actions included.
    """

    def __init__(self, played: AtariVectorEnv, camera: AtariVectorEnv) -> None:
        self._played, self._camera, self.ale = played, camera, played.ale
        self.pictures: Array = np.zeros(0)

    def reset(self, **how: Any) -> Any:
        seen, _ = self._camera.reset(**how)
        if "options" not in how:  # otherwise an episode's end is still to be looked at
            self.pictures = seen[:, -1]
        return self._played.reset(**how)

    def step(self, actions: Array) -> Any:
        seen, reward, *_ = self._camera.step(actions)
        self.pictures = seen[:, -1]
        played = self._played.step(actions)
        if not np.array_equal(reward, played[1]):
            raise Failure("the camera has lost the game it films", "Report it, with the run.")
        return played


def _emulators(
    game: str, config: Config, *, lanes: int, threads: int, camera: bool = False
) -> AtariVectorEnv:
    """Every option is said: the library's defaults differ between its two ways in."""
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
        autoreset_mode="NextStep",  # masked resets need it; we reset before it would act
        img_height=height,
        img_width=width,
        grayscale=not camera,
        stack_num=config.stack,
        frameskip=config.frame_skip,
        maxpool=True,
        noop_max=config.noop_max,  # 30: 0 to 28, each a frame; Nature: up to 30
        episodic_life=False,  # would reset the whole game
        life_loss_info=False,  # would call a lost life the end
        reward_clipping=False,  # would lose the score
        use_fire_reset=True,  # once a game; after a lost life it is the player's to press
    )
