"""Every preset resolves with every other, says what it is and sets only what there is to set."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from manyhands import config, registry

TASKS, RECIPES = config.preset_names("tasks"), config.preset_names("recipes")
FILES = sorted(config.PRESETS.glob("*/*.toml"))


def table(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def kind_of(section: str) -> type:
    """The dataclass of a section, in use or not."""
    always = config.section_types("dqn", "serial")
    if section in always:
        return always[section]
    room = "algorithms" if section in registry.names("algorithms") else "strategies"
    found: type = registry.load(room, section).Config
    return found


def entries(layer: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(section, field, value) of all that a file sets."""
    for name, value in layer.items():
        if name == "for":
            for inner in value.values():
                yield from entries(inner)
        elif isinstance(value, dict):
            yield from ((name, field, given) for field, given in value.items())
        elif name not in ("about", "like"):
            yield "run", name, value


def test_there_are_presets() -> None:
    assert {"cartpole", "lunarlander", "breakout", "pong", "snake"} <= set(TASKS)
    assert {"dqn", "double-dqn"} <= set(RECIPES)
    assert {file.stem for file in FILES} >= {"_atari", "_gym", *TASKS, *RECIPES}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", [*TASKS, "Acrobot-v1", "ALE/Pong-v5", "toy/identity"])
def test_every_task_resolves_by_every_recipe(task: str, recipe: str) -> None:
    plan = config.resolve(task, {"run": {"recipe": recipe}})
    assert plan.top.recipe == recipe
    assert plan.top.algorithm
    assert plan.top.strategy
    assert plan.top.steps > 0
    assert plan["env"].id
    assert plan.algorithm.lr > 0


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_key_is_a_field_and_every_value_in_its_range(file: Path) -> None:
    for section, name, value in entries(table(file)):
        kind = config.Top if section == "run" else kind_of(section)
        assert name in {field.name for field in fields(kind)}, f"[{section}] {name}"
        config.checked(f"[{section}] {name}", value, kind, name)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_preset_says_in_a_line_what_it_is(file: Path) -> None:
    about = table(file)["about"]
    assert 10 < len(about) <= 90
    assert "\n" not in about


@pytest.mark.parametrize("task", TASKS)
def test_sections_for_recipes_name_recipes(task: str) -> None:
    assert set(config.read_preset("tasks", task).get("for", {})) <= set(RECIPES)


@pytest.mark.parametrize("task", [*TASKS, "Acrobot-v1"])
def test_where_draws_are_prioritized_the_rate_is_a_quarter(task: str) -> None:
    """A task's own rate once hid the recipe's, and LunarLander was not learned."""
    rates = [
        config.resolve(task, {"run": {"recipe": recipe}}).algorithm.lr
        for recipe in ("dqn", "prioritized-dqn")
    ]
    assert rates[1] == pytest.approx(rates[0] / 4)


@pytest.mark.parametrize("room", ["algorithms", "strategies", "backends"])
def test_every_member_says_in_a_line_what_it_is(room: str) -> None:
    assert registry.names(room)
    for name in registry.names(room):
        assert len(registry.about(room, name)) > 10
