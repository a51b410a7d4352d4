"""Presets: the tasks and recipes in ``presets/``, as tables and as layers of options.

A layer is ``{section: {field: value}}``. The section ``run`` holds options without a section.
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
    """A preset's table. With ``like = "other"`` the file holds only the differences.

    It also keeps what the other keeps.
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
    """A TOML table as a layer: options without a section belong to ``run``."""
    layer: dict[str, dict[str, Any]] = {"run": {}}
    for key, value in table.items():
        if isinstance(value, dict):
            layer[key] = value
        elif key not in ("about", "keeps"):
            layer["run"][key] = value
    return layer


def kept(recipe: str, table: Mapping[str, Any]) -> Layer:
    """The values of a recipe that no task may override."""
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
    """The task's file; for another environment id, the file for Atari or for Gymnasium."""
    if task in names("tasks"):
        return read("tasks", task)
    if users_files.is_path(task):
        return _any_environment(users_files.absolute(task), "_gym")
    kind = envs.kind_of(task)
    is_word = not any(mark in task for mark in ("-v", "/", ":"))
    known = envs.load(kind).ids()
    if is_word and known and task.replace("_", "") not in _joined(known):
        ours = f"one of {', '.join(names('tasks'))}, an Atari game, or any environment id"
        raise registry.unknown("task", task, [*names("tasks"), *known], otherwise=ours)
    return _any_environment(
        task, f"_{kind}" if (PRESETS / "tasks" / f"_{kind}.toml").exists() else "_gym"
    )


def _any_environment(id: str, like: str) -> dict[str, Any]:
    table = read("tasks", like)
    return _merged(table, {"env": {"id": id}, "threshold": envs.solved_threshold(id)})


def _joined(ids: Iterable[str]) -> set[str]:
    return {id.replace("_", "") for id in ids}
