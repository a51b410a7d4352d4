"""Presets: the tasks and recipes in ``presets/``, as tables and as layers of options.

A layer is ``{section: {field: value}}``. Its section ``run`` holds what is in no section.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from manyhands import envs
from manyhands.config import registry
from manyhands.types import BadRequest, users_files

PRESETS = Path(__file__).parents[1] / "presets"
Layer = Mapping[str, Mapping[str, Any]]


def names(kind: str) -> list[str]:
    return sorted(p.stem for p in (PRESETS / kind).glob("[!_]*.toml"))


def read(kind: str, name: str) -> dict[str, Any]:
    """A preset's table; one that is ``like`` another holds only the differences.

    What that one keeps, this one keeps as well.
    """
    table = tomllib.loads((PRESETS / kind / f"{name}.toml").read_text(encoding="utf-8"))
    like = table.pop("like", None)
    if not like:
        return table
    below = read(kind, like)
    keeps = [*below.pop("keeps", ()), *table.pop("keeps", ())]
    return _merged(below, table) | ({"keeps": keeps} if keeps else {})


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def layer_of(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A TOML table as a layer: what is not in a section belongs to ``run``."""
    layer: dict[str, dict[str, Any]] = {"run": {}}
    for key, value in table.items():
        if isinstance(value, dict):
            layer[key] = value
        elif key not in ("about", "keeps"):
            layer["run"][key] = value
    return layer


def kept(recipe: str, table: Mapping[str, Any]) -> Layer:
    """Those of a recipe's values that no task overrides."""
    layer, keeps = layer_of(table), dict[str, dict[str, Any]]()
    for name in table.get("keeps", ()):
        section, _, field = name.rpartition(".")
        section = section or "run"
        if field not in layer.get(section, {}):
            raise BadRequest(
                f"recipe {recipe} keeps {name}, which it does not set",
                f"set it in {recipe}.toml, or take it out of `keeps`",
            )
        keeps.setdefault(section, {})[field] = layer[section][field]
    return keeps


def task_table(task: str) -> dict[str, Any]:
    """A task's own file, or for any other environment id the one for its kind."""
    if task in names("tasks"):
        return read("tasks", task)
    if users_files.is_path(task):
        return _any_environment(users_files.absolute(task), "_gym")
    is_atari = envs.is_atari(task)
    is_word = not any(mark in task for mark in ("-v", "/", ":"))
    games = envs.games()
    if is_word and is_atari and games and task.replace("_", "") not in _joined(games):
        raise registry.unknown("task", task, [*names("tasks"), *games])
    return _any_environment(task, "_atari" if is_atari else "_gym")


def _any_environment(id: str, like: str) -> dict[str, Any]:
    table = read("tasks", like)
    return _merged(table, {"env": {"id": id}, "threshold": envs.solved_threshold(id)})


def _joined(games: Iterable[str]) -> set[str]:
    return {game.replace("_", "") for game in games}
