"""Dataclasses <-> TOML <-> command line: what a run is, and where each value came from.

A layer is ``{section: {field: value}}``; the section ``run`` holds what is not in a section.
Precedence: defaults < recipe < task < the task's section for the recipe < flags.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from manyhands import checks, envs, memory, networks, registry
from manyhands.types import BadRequest, knob

PRESETS = Path(__file__).parent / "presets"
Layer = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Top:
    """What a run is, apart from the values in its sections."""

    recipe: str = knob("", "how to learn; without it the task's own")
    algorithm: str = knob("", "algorithm, or the path of your own file; the recipe's own")
    strategy: str = knob("", "how learners share parameters; the recipe's own")
    backend: str = knob("auto", "where workers run; auto: processes if there are many")
    workers: int = knob(1, "processes that each act and learn", low=1)
    actors: int = knob(0, "processes that only act; 0: workers do both", low=0)
    learners: int = knob(1, "processes that only learn", low=1)
    publish_every: int = knob(8, "updates after which actors get new weights", low=1)
    envs_per_worker: int = knob(1, "environments stepped at once by each worker", low=1)
    steps: int = knob(0, "agent steps to train for; 0: the task's own", low=0)
    minutes: float = knob(0.0, "minutes to train for, instead of steps", low=0)
    until_solved: bool = knob(False, "stop when the mean of 100 episodes reaches the threshold")
    seed: int = knob(1, "everything random is drawn from it", low=0)
    device: str = knob("auto", "where networks live", choices=("auto", "cpu", "cuda", "mps"))
    threads: int = knob(0, "torch and emulator threads; 0: cores / processes", low=0)
    hang_s: float = knob(120.0, "seconds for a step before a worker is killed; at least 2", above=0)
    threshold: float | None = knob(None, "mean return of 100 episodes that counts as solved")


@dataclass(frozen=True)
class Checkpoint:
    period_minutes: float = knob(10.0, "minutes between checkpoints; 0: only at the end", low=0)
    replay: bool = knob(True, "the newest checkpoint carries the replay, for an exact resume")


@dataclass(frozen=True)
class Evaluation:
    period_steps: int = knob(0, "agent steps between greedy evaluations; 0: none", low=0)
    episodes: int = knob(10, "episodes of an evaluation", low=1)
    epsilon: float = knob(0.0, "random actions while evaluating", low=0, high=1)


@dataclass(frozen=True)
class Plan:
    """A run, resolved: every value, and where it came from."""

    task: str
    top: Top
    sections: Mapping[str, Any]  # name -> its dataclass
    sources: Mapping[str, str]  # "dqn.lr" -> "task lunarlander"

    def __getitem__(self, section: str) -> Any:
        return self.sections[section]

    @property
    def alone(self) -> bool:
        """One worker, in main's own process."""
        return self.top.workers == 1 and not self.top.actors and self.backend == "inprocess"

    @property
    def backend(self) -> str:
        if self.top.backend != "auto":
            return self.top.backend
        return "processes" if self.top.workers > 1 or self.top.actors else "inprocess"

    @property
    def hands(self) -> int:
        """Workers, or actors and learners."""
        return self.top.actors + self.top.learners if self.top.actors else self.top.workers

    @property
    def hosted(self) -> int:
        """Processes of the strategy's own."""
        strategy = self.sections[registry.section_name(self.top.strategy)]
        return 0 if self.alone else int(getattr(strategy, "shards", 0))

    @property
    def algorithm(self) -> Any:
        return self.sections[registry.section_name(self.top.algorithm)]

    def as_layer(self) -> dict[str, dict[str, Any]]:
        made = {name: dataclasses.asdict(config) for name, config in self.sections.items()}
        return {"run": dataclasses.asdict(self.top), **made}


# --- Presets ------------------------------------------------------------------------------------


def preset_names(kind: str) -> list[str]:
    return sorted(p.stem for p in (PRESETS / kind).glob("[!_]*.toml"))


def read_preset(kind: str, name: str) -> dict[str, Any]:
    """A preset's table; one that is ``like`` another holds only the differences."""
    table = tomllib.loads((PRESETS / kind / f"{name}.toml").read_text(encoding="utf-8"))
    like = table.pop("like", None)
    return _merged(read_preset(kind, like), table) if like else table


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _layer(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A TOML table as a layer: what is not in a section belongs to ``run``."""
    layer: dict[str, dict[str, Any]] = {"run": {}}
    for key, value in table.items():
        if isinstance(value, dict):
            layer[key] = value
        elif key != "about":
            layer["run"][key] = value
    return layer


def task_table(task: str) -> dict[str, Any]:
    """A task's own file, or for any other environment id the one for its kind."""
    if task in preset_names("tasks"):
        return read_preset("tasks", task)
    is_atari = envs.is_atari(task)
    is_word = not any(mark in task for mark in ("-v", "/", ":"))
    games = envs.games()
    if is_word and is_atari and games and task.replace("_", "") not in _joined(games):
        raise registry.unknown("task", task, [*preset_names("tasks"), *games])
    table = read_preset("tasks", "_atari" if is_atari else "_gym")
    return _merged(table, {"env": {"id": task}, "threshold": envs.solved_threshold(task)})


def _joined(games: Iterable[str]) -> set[str]:
    return {game.replace("_", "") for game in games}


# --- Resolving ----------------------------------------------------------------------------------


def resolve(task: str, flags: Layer, *, table: dict[str, Any] | None = None) -> Plan:
    """What ``train TASK`` with these flags means."""
    table = dict(table if table is not None else task_table(task))
    for_recipe = table.pop("for", {})
    asked = flags.get("run", {})
    recipe = str(asked.get("recipe") or table.get("recipe", ""))
    if recipe not in preset_names("recipes"):
        raise registry.unknown("--recipe", recipe, preset_names("recipes"))
    layers: list[tuple[str, Layer]] = [
        (f"recipe {recipe}", _layer(read_preset("recipes", recipe))),
        (f"task {task}", _layer(table)),
        (f"task {task} for {recipe}", _layer(for_recipe.get(recipe, {}))),
        ("flag", {**flags, "run": {k: v for k, v in asked.items() if k != "recipe" or v}}),
    ]
    return _build(task, layers)


def from_options(task: Any, network: Any, options: Mapping[str, Any]) -> Plan:
    """What ``mh.train(task, network=…, **options)`` means: dicts are sections.

    A task may be a function that makes an environment; a network that is a class is the caller's.
    """
    flags: dict[str, dict[str, Any]] = {"run": {}}
    for name, value in options.items():
        if isinstance(value, dict):
            flags[name] = value
        else:
            flags["run"][name] = value
    if isinstance(network, str):
        flags["network"] = {"torso": network}
    elif isinstance(network, dict):
        flags["network"] = network
    if isinstance(task, str):
        return resolve(task, flags)
    name = getattr(task, "__qualname__", type(task).__name__)
    table = read_preset("tasks", "_gym")
    table["env"] = {"id": f"own/{name}"}
    return resolve(name, flags, table=table)


def _build(task: str, layers: list[tuple[str, Layer]]) -> Plan:
    sources: dict[str, str] = {}
    top = _section("run", Top, layers, sources)
    known = section_types(top.algorithm, top.strategy)
    optional = {*registry.names("algorithms"), *registry.names("strategies")}
    for source, layer in layers:
        for name in layer:
            if name != "run" and name not in known and not (source != "flag" and name in optional):
                raise _unused(name, known, optional)
    made = {name: _section(name, kind, layers, sources) for name, kind in known.items()}
    plan = Plan(task, _roles(top, sources), made, sources)
    if plan.backend == "processes" and plan.top.device == "auto":  # what they share is in memory
        plan = dataclasses.replace(plan, top=dataclasses.replace(plan.top, device="cpu"))
    checks.check(plan)
    return plan


def _roles(top: Top, sources: Mapping[str, str]) -> Top:
    """Where a recipe has actors apart from learners, ``--workers N`` means N actors; where it has
    workers, ``--actors N`` takes their place.
    """
    workers, actors = (sources.get(f"run.{name}") == "flag" for name in ("workers", "actors"))
    if not top.actors:
        return top
    if workers and actors:
        raise BadRequest("--workers and --actors were both given", "give one of them")
    if workers:
        return dataclasses.replace(top, actors=top.workers, workers=1)
    return dataclasses.replace(top, workers=1) if actors else top


def section_types(algorithm: str, strategy: str) -> dict[str, type]:
    from manyhands import optim

    return {
        "env": envs.Config,
        "memory": memory.Config,
        "network": networks.Config,
        "optim": optim.Config,
        "checkpoint": Checkpoint,
        "evaluation": Evaluation,
        registry.section_name(algorithm): registry.load("algorithms", algorithm).Config,
        registry.section_name(strategy): registry.load("strategies", strategy).Config,
    }


def _unused(name: str, known: Iterable[str], optional: set[str]) -> BadRequest:
    if name in optional:
        return BadRequest(
            f"--{name}.… belongs to {name}, which this run does not use",
            f"sections in use: {', '.join(known)}",
        )
    return registry.unknown("section", name, list(known))


def _section(
    name: str, kind: type, layers: list[tuple[str, Layer]], sources: dict[str, str]
) -> Any:
    known = {field.name: field for field in fields(kind)}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for source, layer in layers:
        for key, value in layer.get(name, {}).items():
            flag = f"--{key}" if name == "run" else f"--{name}.{key}"
            if key not in known:
                raise registry.unknown("option", flag, _flags(name, known))
            values[key] = registry.absolute(_checked(flag, value, hints[key], known[key].metadata))
            sources[f"{name}.{key}"] = source
    return kind(**values)


def _flags(name: str, known: Iterable[str]) -> list[str]:
    return [f"--{key}" if name == "run" else f"--{name}.{key}" for key in known]


# --- Values -------------------------------------------------------------------------------------


def checked(flag: str, value: Any, kind: type, name: str) -> Any:
    """The value of one field of a dataclass of knobs, in its type and range."""
    field = next(field for field in fields(kind) if field.name == name)
    return _checked(flag, value, typing.get_type_hints(kind)[name], field.metadata)


def _checked(flag: str, value: Any, hint: Any, metadata: Mapping[str, Any]) -> Any:
    """The value in its type and range, from a flag's text, TOML or Python."""
    typed = _typed(flag, value, hint)
    if (choices := metadata.get("choices")) and typed not in choices:
        raise registry.unknown(flag, typed, list(choices))
    for number in typed if isinstance(typed, tuple) else (typed,):
        if isinstance(number, int | float) and not _is_within(number, metadata):
            raise BadRequest(f"{flag} {value} is out of range", f"give {_range(metadata)}")
    return typed


def _is_within(number: float, metadata: Mapping[str, Any]) -> bool:
    low, above, high = (metadata.get(bound) for bound in ("low", "above", "high"))
    return (
        math.isfinite(number)
        and (low is None or number >= low)
        and (above is None or number > above)
        and (high is None or number <= high)
    )


def _range(metadata: Mapping[str, Any]) -> str:
    words = {"low": "at least", "above": "more than", "high": "at most"}
    bounds = [f"{w} {metadata[k]:g}" for k, w in words.items() if metadata.get(k) is not None]
    return " and ".join(bounds) or "a finite number"


def _typed(flag: str, value: Any, hint: Any) -> Any:
    if isinstance(hint, types.UnionType):  # X | None
        if value is None or value == "none":
            return None
        hint = next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    try:
        if typing.get_origin(hint) is tuple:
            items = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(_number(item) for item in items)
        return {int: _number, float: _float, bool: _bool, str: _str}[hint](value)
    except (ValueError, TypeError, KeyError, OverflowError):
        name = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        wanted = name.get(hint, "whole numbers, as in 256,256")
        raise BadRequest(f"{flag} {value!r} is not {wanted}", f"give {wanted}") from None


def _number(value: Any) -> int:
    """100000, 100_000 and 1e5 are whole numbers; 1.5 and true are not."""
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, str):
        value = float(value) if "e" in value.lower() or "." in value else int(value)
    if value != int(value):
        raise ValueError(value)
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError(value)
    return float(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
        str(value).lower()
    ]


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


# --- Files ----------------------------------------------------------------------------------------


def to_json(plan: Plan) -> dict[str, Any]:
    return {"task": plan.task, "config": plan.as_layer(), "sources": dict(plan.sources)}


def from_json(path: Path, *, allow_code: bool) -> Plan:
    """A run's config.json. Code it names (a .py file, module:Env-v0) runs only when allowed."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        task, layer = str(table["task"]), {k: dict(v) for k, v in dict(table["config"]).items()}
        named = [layer["run"][member] for member in ("algorithm", "strategy", "backend")]
        named += [layer["network"]["torso"]]
        code = [n for n in named if registry.is_path(str(n))]
        code += [layer["env"]["id"]] if ":" in str(layer["env"]["id"]) else []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(
            f"{path} is not a run's configuration: {type(error).__name__}: {error}",
            "give the folder that `manyhands train` made",
        ) from None
    if code and not allow_code:
        raise BadRequest(
            f"{path} names code of its own: {', '.join(map(str, code))}",
            "add --allow-code if you trust the run",
        )
    return _build(task, [("config.json", layer)])
