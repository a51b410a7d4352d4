"""Makes one `gymnasium.Env` from its id and arguments, or refuses with a remedy."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from copy import copy
from difflib import get_close_matches
from functools import partial
from typing import Any

import gymnasium
from gymnasium import error, spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator

from manyhands import envs
from manyhands.types import BadRequest, users_files
from manyhands.types.errors import place_of, text_of

OURS = (
    "id",
    "disable_env_checker",
    "render_mode",
)  # arguments of gymnasium.make that manyhands sets
MUJOCO = "gymnasium.envs.mujoco"  # all its actions are continuous
BOX2D_CONTINUOUS = ("BipedalWalker", "LunarLanderContinuous", "CarRacing")


def maker(wanted: envs.Wanted) -> Callable[[], Any]:
    """A function that makes one environment."""
    config = wanted.config
    make = wanted.factory or partial(made, config.id, config.kwargs, wanted.render_mode)
    return partial(_limited, make, wanted.episode_steps) if wanted.episode_steps else make


def _limited(make: Callable[[], Any], episode_steps: int) -> Any:
    """Its own limit holds as well, if it is lower."""
    env = make()
    known = isinstance(env, gymnasium.Env)  # others are refused later
    return gymnasium.wrappers.TimeLimit(env, episode_steps) if known else env


def made(id: str, kwargs: Mapping[str, Any] | None = None, render_mode: str | None = None) -> Any:
    """Leaves out gymnasium's checker, which doubles the cost of a step."""
    if id.startswith("own/"):
        raise BadRequest(
            "this run's environment was made by a Python function, which the run does not contain",
            "continue in Python: mh.resume(path, make_env=…), or mh.load(path) and your own loop",
        )
    own = users_files.is_path(id)
    if ":" not in id and id not in gymnasium.registry and not own:
        raise envs.unknown(id)
    given = dict(kwargs or {})
    for taken in set(OURS) & set(given):
        raise BadRequest(f"--env.kwargs.{taken} is set by manyhands", "leave it out")
    if ":" in id and not own and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # a module in the working folder, as `python -m` finds it
    try:
        with warnings.catch_warnings():  # Box2D's import crashes if these are errors
            warnings.filterwarnings("ignore", "builtin type [sS]wig", DeprecationWarning)
            shown: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
            return (_from_file if own else _registered)(id, {**given, **shown})
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        raise _without_its_package(id, given, missing) from missing
    except error.Error as refused:
        raise BadRequest(f"{id!r} cannot be made: {refused}.", "Correct env.id.") from refused
    except Exception as raised:
        if not given and not own:
            raise
        raise _arguments_refused(id, given, raised) from raised


def _registered(id: str | EnvSpec, given: Mapping[str, Any]) -> Any:
    return gymnasium.make(id, disable_env_checker=True, **given)


def _from_file(id: str, given: dict[str, Any]) -> Any:
    """``grids.py:Grid-v0`` (an id that the file registers) or ``grids.py:Grid`` (a callable)."""
    creator = creator_in(id)
    if isinstance(creator, str):
        return _registered(_spec_in(id, creator), given)
    if "render_mode" in given and "render_mode" not in (_names(creator) or given):
        given = {name: value for name, value in given.items() if name != "render_mode"}
    return creator(**given)


def _spec_in(id: str, name: str) -> EnvSpec:
    """The registered spec. An entry point "grids:Grid" must mean this file: if a run uses its copy,
    another module may have the same name.
    """
    spec, module = copy(gymnasium.registry[name]), users_files.load(id)
    if isinstance(spec.entry_point, str):
        home, _, attribute = spec.entry_point.partition(":")
        if home == users_files.stem(id):
            spec.entry_point = getattr(module, attribute)
    return spec


def creator_in(id: str) -> Any:
    """The class or function of that name in the file, or the registered id."""
    module, name = users_files.load(id), id.partition(":")[2]
    if callable(creator := vars(module).get(name)):
        return creator
    if name in gymnasium.registry and name:
        return name
    classes = [
        each
        for each in users_files.offered(module)
        if isinstance(vars(module)[each], type) and issubclass(vars(module)[each], gymnasium.Env)
    ]
    here = {module.__name__, users_files.stem(id)}
    ids = [one for one, spec in gymnasium.registry.items() if _home(spec.entry_point) in here]
    raise users_files.no_such(id, [*ids, *classes])


def _home(entry_point: Any) -> str:
    if isinstance(entry_point, str):
        return entry_point.partition(":")[0]
    return str(getattr(entry_point, "__module__", ""))


def env_of(made: Any, id: str) -> Any:
    """Refuses an object that is not an environment, or one without spaces."""
    name = id.removeprefix("own/")
    if not isinstance(made, gymnasium.Env):
        kind = f"{type(made).__module__}.{type(made).__name__}"
        raise BadRequest(
            f"{name} returned {kind}, not a gymnasium.Env.",
            "Return an environment; your class must inherit from gymnasium.Env.",
        )
    for space in ("observation_space", "action_space"):
        if not isinstance(getattr(made, space, None), spaces.Space):
            raise BadRequest(
                f"{name} has no {space} of gymnasium.spaces.",
                f"Set self.{space} in its constructor, for example to a gymnasium.spaces."
                f"{'Box' if space == 'observation_space' else 'Discrete'}.",
            )
    return made


def _without_its_package(id: str, given: Mapping[str, Any], missing: Exception) -> BadRequest:
    """Does not ask for an installation if manyhands could not train it anyway."""
    if is_continuous(id, given):
        return continuous(id)
    text = str(missing).rstrip(".")
    if "box2d" in text.lower():
        what, remedy = f"{id} needs Box2D, which is not installed.", "manyhands[box2d]"
        return BadRequest(what, f'pip install "{remedy}".')
    if isinstance(missing, ModuleNotFoundError):
        what, remedy = f"{id} cannot be made: {text}.", "Install that module."
    else:
        what, remedy = f"{id} cannot be made: a package is missing.", f"{text}."
    return BadRequest(what, f"{remedy} Its actions must be discrete.")


def is_continuous(id: str, given: Mapping[str, Any]) -> bool:
    """Whether its actions are known to be continuous, without making it."""
    spec = gymnasium.registry.get(id)
    if spec is None:
        return False
    if str(spec.entry_point).startswith(MUJOCO):
        return True
    return spec.name.startswith(BOX2D_CONTINUOUS) and given.get("continuous") is not False


def continuous(id: str) -> BadRequest:
    return BadRequest(
        f"{id} has continuous actions (Box); manyhands needs discrete actions.",
        "Choose an environment with a Discrete action space, or wrap yours.",
    )


def actions(id: str, space: Any) -> tuple[int, int]:
    """How many actions there are, and the number gymnasium gives the first."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), int(space.start)
    if isinstance(space, spaces.Box):
        raise continuous(id)
    raise BadRequest(
        f"{id} has {type(space).__name__} actions; manyhands needs discrete actions.",
        "Choose one with a Discrete action space, or wrap yours so that it has one.",
    )


def _arguments_refused(id: str, given: Mapping[str, Any], raised: Exception) -> BadRequest:
    taken = _parameters(id)
    for name in given:
        if taken and name not in taken:
            near = get_close_matches(name, taken, n=1, cutoff=0.5)
            remedy = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(sorted(taken))}."
            return BadRequest(f"{id} takes no --env.kwargs.{name}.", remedy)
    words = ", ".join(f"{name}={value!r}" for name, value in given.items())
    tried = f"{id} cannot be made{' with ' if words else ''}{words}"
    return BadRequest(
        f"{tried}: {type(raised).__name__}: {text_of(raised)}{place_of(raised)}",
        "Correct --env.kwargs."
        if given
        else "Fix it, or pass the missing argument: --env.kwargs.NAME.",
    )


def _parameters(id: str) -> set[str]:
    """The names of an environment's arguments; empty if unknown."""
    try:
        found: Any = creator_in(id) if users_files.is_path(id) else id
        while isinstance(found, str):
            found = gymnasium.spec(found).entry_point
            found = load_env_creator(found) if isinstance(found, str) else found
    except (error.Error, ImportError, AttributeError):
        return set()
    names = _names(found)
    return names - set(OURS) | {"max_episode_steps"} if names else set()


def _names(creator: Any) -> set[str]:
    """The names of its arguments; empty if it takes any."""
    try:
        found = inspect.signature(creator).parameters.values()
    except (TypeError, ValueError):
        return set()
    return set() if any(one.kind is one.VAR_KEYWORD for one in found) else {o.name for o in found}
