"""The sections of a run's options, and how layers of presets and flags fill them."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any

from manyhands.config import registry
from manyhands.config.presets import Layer
from manyhands.config.values import in_range
from manyhands.envs import Config as EnvConfig
from manyhands.memory import Config as MemoryConfig
from manyhands.networks.config import Config as NetworkConfig
from manyhands.types import BadRequest, Options, option, users_files

AUTO = "auto"  # the backend `processes` or `inprocess`, which have no section
SECTIONS = ("env", "memory", "network", "optim", "checkpoint", "evaluation")  # in every run


@dataclass(frozen=True)
class Top:
    """What a run is, apart from the values in its sections."""

    recipe: str = option("", "recipe; default: the task's")
    algorithm: str = option("", "algorithm, or the path of your own file; default: the recipe's")
    strategy: str = option("", "how learners share parameters; default: the recipe's")
    backend: str = option(AUTO, "where workers run; auto: processes if there are many")
    workers: int = option(1, "processes that each act and learn", low=1)
    actors: int = option(0, "processes that only act; 0: workers do both", low=0)
    learners: int = option(1, "processes that only learn", low=1)
    single_actor: bool = option(
        False, "the environment exists once: one actor, and --workers N means N learners"
    )
    island_size: int = option(
        1, "workers that share one vector, with a strategy that has islands", low=1
    )
    publish_every: int = option(8, "updates between two publications of weights to actors", low=1)
    envs_per_worker: int = option(
        1, "environments stepped at once by each worker", low=1, high=10_000
    )
    steps: int = option(0, "agent steps to train for; 0: the task's", low=0)
    minutes: float = option(0.0, "minutes to train for, instead of steps", low=0)
    until_solved: bool = option(False, "stop when the mean of 100 episodes reaches the threshold")
    seed: int = option(1, "seed of all random numbers", low=0, high=2**63 - 1)
    device: str = option("auto", "device of the networks", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = option(
        0,
        "threads of computation and emulators; 0: cores / processes, and 1 for your own network",
        low=0,
        high=1024,
    )
    hang_s: float = option(
        120.0, "seconds without progress before a worker is killed; at least 2", above=0
    )
    threshold: float | None = option(None, "mean return of 100 episodes that counts as solved")


@dataclass(frozen=True)
class Checkpoint:
    period_minutes: float = option(10.0, "minutes between checkpoints; 0: only at the end", low=0)
    replay: bool = option(True, "save the replay in the newest checkpoint, for an exact resume")


@dataclass(frozen=True)
class Evaluation:
    period_steps: int = option(0, "agent steps between greedy evaluations; 0: none", low=0)
    episodes: int = option(10, "episodes of an evaluation", low=1)
    epsilon: float = option(0.0, "share of random actions while evaluating", low=0, high=1)
    episode_steps: int = option(
        27_000, "cut episodes off after so many agent steps (gymnasium); 0: never", low=0
    )


def types_of(algorithm: str, strategy: str, backend: str = AUTO) -> dict[str, type]:
    from manyhands import optim

    place = None if backend == AUTO else registry.backend(backend).Config

    return {
        "env": EnvConfig,
        "memory": MemoryConfig,
        "network": NetworkConfig,
        "optim": optim.Config,
        "checkpoint": Checkpoint,
        "evaluation": Evaluation,
        registry.section_name(algorithm): _with_defaults(
            registry.load("algorithms", algorithm).Config
        ),
        registry.section_name(strategy): _with_defaults(
            registry.load("strategies", strategy).Config
        ),
        **({} if place is None else {registry.section_name(backend): _with_defaults(place)}),
    }


def _options(file: ModuleType) -> type[Options]:
    return _with_defaults(file.Config)


@cache  # one class, so that equal options are equal
def _with_defaults(kind: type) -> type[Options]:
    """A user's `Config` may be a plain dataclass. It then gets the defaults of `Options`."""
    return kind if issubclass(kind, Options) else type(kind.__name__, (kind, Options), {})


def unused(name: str, known: Iterable[str], optional: set[str]) -> BadRequest:
    if name in optional:
        return BadRequest(
            f"--{name}.… belongs to {name}, which this run does not use",
            f"sections in use: {', '.join(known)}",
        )
    return registry.unknown("section", name, list(known))


def fill(name: str, kind: type, layers: list[tuple[str, Layer]], sources: dict[str, str]) -> Any:
    known = {field.name: field for field in fields(kind)}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for source, layer in layers:
        for key, value in layer.get(name, {}).items():
            flag = f"--{key}" if name == "run" else f"--{name}.{key}"
            if key not in known:
                raise registry.unknown("option", flag, _flags(name, known))
            made = users_files.absolute(in_range(flag, value, hints[key], known[key].metadata))
            if isinstance(made, dict):  # tables of arguments are merged with the layers below
                sources |= {f"{name}.{key}.{argument}": source for argument in made}
                made = {**(values.get(key) or {}), **made}
            values[key] = made
            sources[f"{name}.{key}"] = source
    return kind(**values)


def _flags(name: str, known: Iterable[str]) -> list[str]:
    return [f"--{key}" if name == "run" else f"--{name}.{key}" for key in known]
