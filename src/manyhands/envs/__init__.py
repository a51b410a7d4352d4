"""Where experience comes from: one `Environment` of n lanes, whatever plays behind it.

Importing this imports neither gymnasium nor ale_py; `make` imports the one it needs.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from manyhands.types import BadRequest, Environment, option, users_files

SNAKE = "manyhands/Snake-v0"


@dataclass(frozen=True)
class Config:
    """Section ``env``."""

    id: str = option("", "what to play: breakout, LunarLander-v3, manyhands/Snake-v0, my.py:Env-v0")
    sticky: float = option(
        0.0, "chance that the emulator repeats the last action (Atari)", low=0.0, high=1.0
    )
    life_loss: bool = option(True, "while learning, a lost life counts as the end: discount 0")
    reward_clip: float = option(
        0.0, "rewards are learned from within ±this; 0: as they are", low=0.0
    )
    reward_scale: float = option(1.0, "rewards are learned from times this", above=0.0)
    obs_scale: float = option(1.0, "the network multiplies observations by this", above=0.0)
    noop_max: int = option(
        30,
        "an Atari game begins with no-ops, each a frame: by chance 0 to this less 2 (ale-py's way)",
        low=0,
    )
    max_frames: int = option(108_000, "emulator frames before an Atari episode is cut off", low=1)
    frame_skip: int = option(4, "emulator frames for one decision (Atari)", low=1)
    stack: int = option(4, "newest frames that make an observation (Atari)", low=1)
    frame_size: int = option(84, "height and width an Atari frame is shrunk to", low=1)
    board: int = option(8, "height and width of the board (Snake)", low=4, high=64)
    kwargs: Mapping[str, Any] | None = option(
        None, "arguments of gymnasium.make, each by its name: --env.kwargs.is_slippery false"
    )
    obs_key: str = option("", "of Dict observations the one to see; without it all, flattened")


def check(config: Config, *, own: bool = False) -> None:
    """Refuses what the environment cannot take, before it is made. ``own``: a function makes it."""
    asked = [f"--env.kwargs.{name}" for name in config.kwargs or ()]
    if own and asked:
        raise BadRequest(
            f"an environment that a function makes takes no {', '.join(asked)}",
            "let the function give it those",
        )
    asked += ["--env.obs-key"] if config.obs_key else []
    kind = _kind(config.id)
    if asked and kind and not own:
        remedy = "leave it out; --env.board is its size" if kind == "Snake" else "leave it out"
        raise BadRequest(f"{kind} takes no {', '.join(asked)}", remedy)


def _kind(id: str) -> str:
    """The kind of one of our own environments; empty: a gymnasium environment."""
    if id.startswith("toy/"):
        return f"the toy {id}"
    if id == SNAKE:
        return "Snake"
    return f"the Atari game {id}" if is_atari(id) else ""


def make(
    config: Config,
    *,
    lanes: int,
    seed: np.random.SeedSequence,
    threads: int,
    training: bool = True,
    factory: Callable[[], Any] | None = None,
    render_mode: str | None = None,
) -> Environment:
    """The environment asked for. ``factory`` returns a `gymnasium.Env` of the caller's own.

    Without ``training`` a lost life is never discount 0. ``threads`` are the emulator's. With a
    ``render_mode`` of `render_modes` it has ``render_lane(lane)``: what the lane looked like after
    its last step, an episode that ended as it ended; and ``pictures_per_s``.
    """
    life_loss = config.life_loss and training
    if factory is None and config.id.startswith("toy/"):
        from manyhands.envs import toy

        return toy.make(config.id, lanes=lanes, seed=seed, life_loss=life_loss)
    if factory is None and config.id == SNAKE:
        from manyhands.envs.snake import Snake

        return Snake(lanes, config.board, seed, render_mode=render_mode)
    if factory is None and is_atari(config.id):
        given = {"lanes": lanes, "seed": seed, "threads": threads, "life_loss": life_loss}
        return _make_atari(config, **given, filmed=render_mode is not None)
    from manyhands.envs.gym import Gym

    return Gym(
        config.id,
        lanes=lanes,
        seed=seed,
        kwargs=config.kwargs,
        obs_key=config.obs_key,
        factory=factory,
        render_mode=render_mode,
    )


def _make_atari(config: Config, **given: Any) -> Environment:
    atari = _atari(config.id)
    game = atari.game_of(config.id)
    if game is None:
        raise unknown(config.id)
    made: Environment = atari.Atari(game, config, **given)
    return made


def render_modes(config: Config) -> tuple[str, ...]:
    """How an environment can be looked at: ansi, human, rgb_array, or not at all."""
    id = config.id
    if id.startswith("toy/"):
        return ()
    if id == SNAKE:
        from manyhands.envs.snake import RENDER_MODES

        return RENDER_MODES
    if is_atari(id):
        return ("rgb_array",)
    from manyhands.envs import gym

    return gym.render_modes(id, config.kwargs)


def is_atari(id: str) -> bool:
    """Whether an id means a game of the emulator, judged without asking it."""
    if id.startswith("ALE/") or "NoFrameskip-v" in id:
        return True
    import gymnasium

    is_word = bool(id) and not any(mark in id for mark in (":", "/", "-v"))
    return is_word and id not in gymnasium.registry


def games() -> list[str]:
    """The emulator's games by their short names; none where its extra is not installed."""
    try:
        from manyhands.envs import atari
    except ImportError:
        return []
    return atari.games()


def solved_threshold(id: str) -> float | None:
    """The mean return at which gymnasium calls an environment solved; None: not said."""
    import gymnasium

    if users_files.is_path(id):
        from manyhands.envs import making

        found = making.creator_in(id)
        id = found if isinstance(found, str) else ""
    spec = gymnasium.registry.get(id)
    return None if spec is None or is_atari(id) else spec.reward_threshold


def unknown(id: str) -> BadRequest:
    """The refusal of an unknown id, with the nearest known one."""
    names = {name.lower(): name for name in _known()}
    asked = id.removeprefix("ALE/").replace("NoFrameskip", "").lower()
    near = difflib.get_close_matches(asked, names, n=1, cutoff=0.5)
    remedy = f"Did you mean {names[near[0]]}?" if near else "Give an id known to gymnasium."
    return BadRequest(f"There is no environment called {id!r}.", remedy)


def _known() -> list[str]:
    import gymnasium

    from manyhands.envs import toy

    made_by = {id: str(spec.entry_point) for id, spec in gymnasium.registry.items()}
    other_ways = ("ale_py", "gymnasium.envs.phys2d", "gymnasium.envs.tabular")
    ids = [id for id, maker in made_by.items() if not maker.startswith(other_ways)]
    return [SNAKE, *toy.GAMES, *ids, *games()]


def _atari(id: str) -> Any:
    """The Atari room, if its extra is installed."""
    try:
        from manyhands.envs import atari
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != "ale_py":
            raise
        sure = id.startswith("ALE/") or "NoFrameskip-v" in id
        what = f"{id!r} is an Atari game" if sure else f"{id!r} is unknown to gymnasium"
        guess = "" if sure else f" If it is no Atari game: {unknown(id).remedy}"
        raise BadRequest(
            f"{what}, and ale_py is not installed.", f'pip install "manyhands[atari]".{guess}'
        ) from error
    return atari
