"""Where experience comes from: an `Environment` steps n environments at once.

One file for each kind of environment, which says what ids it serves (`Kind`). Importing this
imports none of them, and neither gymnasium nor ale_py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from manyhands.envs.waiting import Waiting
from manyhands.types import BadRequest, Environment, folders, option, users_files

EMULATOR_S = 0.06  # of CPU time: to make one emulator, and again to seed it


@dataclass(frozen=True)
class Config:
    """Section ``env``."""

    id: str = option("", "environment: breakout, LunarLander-v3, manyhands/Snake-v0, my.py:Env-v0")
    sticky: float = option(
        0.0, "probability that the emulator repeats the last action (Atari)", low=0.0, high=1.0
    )
    life_loss: bool = option(True, "for learning, a lost life ends the episode: discount 0")
    reward_clip: float = option(0.0, "clip rewards to ±this for learning; 0: no clipping", low=0.0)
    reward_scale: float = option(1.0, "multiply rewards by this for learning", above=0.0)
    obs_scale: float = option(1.0, "the network multiplies observations by this", above=0.0)
    noop_max: int = option(
        30,
        "no-ops at the start of an Atari game: a random number from 0 to this - 2 (as in ale-py)",
        low=0,
    )
    max_frames: int = option(
        108_000, "emulator frames after which an Atari episode is truncated", low=1
    )
    frame_skip: int = option(4, "emulator frames per agent step (Atari)", low=1)
    stack: int = option(4, "frames in an observation (Atari)", low=1)
    frame_size: int = option(84, "height and width of a frame for the network (Atari)", low=1)
    board: int = option(8, "height and width of the board (Snake)", low=4, high=64)
    resolution: int = option(
        1, "rows and columns in the place of each of the textbook's (Maze)", low=1, high=32
    )
    wait_ms: float = option(
        0.0, "a training step also waits this long, without using a core", low=0.0, high=60_000.0
    )
    train_steps: int = option(
        0, "cut episodes off after so many steps while training (gymnasium); 0: never", low=0
    )
    kwargs: Mapping[str, Any] | None = option(
        None, "arguments of gymnasium.make, e.g. --env.kwargs.is_slippery false"
    )
    obs_key: str = option("", "the key of a Dict observation to use; empty: all, flattened")


class Wanted(NamedTuple):
    """What `make` of a kind is asked for."""

    config: Config
    lanes: int
    seed: np.random.SeedSequence
    threads: int  # the emulator's
    life_loss: bool
    render_mode: str | None = None
    factory: Callable[[], Any] | None = None  # makes a `gymnasium.Env`
    episode_steps: int = 0  # cuts episodes of gymnasium's environments off; 0: never


class Kind(Protocol):
    """What the file of a kind of environment has."""

    def serves(self, id: str) -> bool:
        """Whether an environment of this id is its own, judged by the id alone."""

    def ids(self) -> list[str]:
        """The ids to suggest for one that is not known."""

    def check(self, config: Config) -> None:
        """Refuses what it cannot take, before anything is made."""

    def make(self, wanted: Wanted) -> Environment: ...

    def render_modes(self, config: Config) -> tuple[str, ...]: ...


KINDS = folders.names(Path(__file__).parent)
ANY = "gym"  # serves every id that no other kind does


def kind_of(id: str) -> str:
    """The kind that serves this id."""
    return next((name for name in KINDS if name != ANY and load(name).serves(id)), ANY)


def load(kind: str) -> Kind:
    file: Any = import_module(f"manyhands.envs.{kind}")
    found: Kind = file
    return found


def check(config: Config, *, own: bool = False) -> None:
    """Refuses options that the environment cannot use. ``own``: a function makes it."""
    if own and config.kwargs:
        raise BadRequest(
            f"an environment that a function makes takes no {', '.join(_arguments(config))}",
            "set them in the function",
        )
    if config.train_steps and (own or kind_of(config.id) != ANY):
        raise BadRequest(
            "--env.train-steps is for environments that gymnasium.make makes", "leave it out"
        )
    if not own:
        load(kind_of(config.id)).check(config)


def refuse_arguments(config: Config, what: str, remedy: str = "leave it out") -> None:
    """For kinds that are not made by `gymnasium.make`."""
    asked = _arguments(config) + (["--env.obs-key"] if config.obs_key else [])
    if asked:
        raise BadRequest(f"{what} takes no {', '.join(asked)}", remedy)


def _arguments(config: Config) -> list[str]:
    return [f"--env.kwargs.{name}" for name in config.kwargs or ()]


def make(
    config: Config,
    *,
    lanes: int,
    seed: np.random.SeedSequence,
    threads: int,
    training: bool = True,
    factory: Callable[[], Any] | None = None,
    render_mode: str | None = None,
    episode_steps: int = 0,
) -> Environment:
    """Makes the configured environment. ``factory`` returns a user's own `gymnasium.Env`.

    Without ``training`` it does not wait, a lost life does not end the episode, and episodes are
    not cut off. ``threads``: of the emulator. With a ``render_mode`` of `render_modes` it has
    ``pictures_per_s`` and ``render_lane(lane)``: the picture after the last step; for an ended
    episode, its last picture.
    """
    life_loss = config.life_loss and training
    if config.train_steps and training:
        limited = {**(config.kwargs or {}), "max_episode_steps": config.train_steps}
        config = replace(config, kwargs=limited)
    kind = kind_of(config.id) if factory is None else ANY
    wanted = Wanted(
        config, lanes, seed, threads, life_loss, render_mode, factory, episode_steps=episode_steps
    )
    made = load(kind).make(wanted)
    return Waiting(made, config.wait_ms / 1e3) if config.wait_ms and training else made


def render_modes(config: Config) -> tuple[str, ...]:
    """The render modes of an environment: some of ansi, human, rgb_array."""
    return load(kind_of(config.id)).render_modes(config)


def seconds_to_load(config: Config, lanes: int) -> float:
    """About how long making these environments takes, and seeding them with one thread."""
    return EMULATOR_S * lanes if kind_of(config.id) == "atari" else 0.0


def solved_threshold(id: str) -> float | None:
    """The mean return at which gymnasium calls an environment solved; None: unknown."""
    import gymnasium

    if users_files.is_path(id):
        from manyhands.envs import making

        found = making.creator_in(id)
        id = found if isinstance(found, str) else ""
    spec = gymnasium.registry.get(id)
    return None if spec is None or kind_of(id) != ANY else spec.reward_threshold


def unknown(id: str) -> BadRequest:
    """Refuses an unknown id and suggests the nearest known one, of its namespace if that exists."""
    kinds = ["atari"] if id.startswith("ALE/") else KINDS
    names = {name.lower(): name for kind in kinds for name in load(kind).ids()}
    asked = id.removeprefix("ALE/").replace("NoFrameskip", "").lower()
    namespace = asked.rpartition("/")[0]
    beside = {low: name for low, name in names.items() if low.startswith(f"{namespace}/")}
    names = beside if namespace and beside else names
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.5)
    remedy = f"Did you mean {names[near[0]]}?" if near else "Give an id known to gymnasium."
    return BadRequest(f"There is no environment called {id!r}.", remedy)
