"""Every preset resolves with every other, says what it is and sets only what there is to set."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from manyhands.config import plans, presets, registry, sections, values
from manyhands.roles.making import ladder
from manyhands.types import BadRequest

EVERYWHERE = ["Acrobot-v1", "ALE/Pong-v5", "toy/identity"]
TASKS, RECIPES = presets.names("tasks"), presets.names("recipes")
FILES = sorted(presets.PRESETS.glob("*/*.toml"))


def table(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def kind_of(section: str) -> type:
    """The dataclass of a section, in use or not."""
    always = sections.types_of("dqn", "serial")
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
        elif name not in ("about", "like", "keeps"):
            yield "run", name, value


def test_there_are_presets() -> None:
    assert {"cartpole", "lunarlander", "breakout", "pong", "snake"} <= set(TASKS)
    assert {"dqn", "double-dqn"} <= set(RECIPES)
    assert {file.stem for file in FILES} >= {"_atari", "_gym", *TASKS, *RECIPES}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", [*TASKS, *EVERYWHERE])
def test_every_task_resolves_by_every_recipe(task: str, recipe: str) -> None:
    plan = plans.resolve(task, {"run": {"recipe": recipe}})
    assert plan.top.recipe == recipe
    assert plan.top.algorithm
    assert plan.top.strategy
    assert plan.top.steps > 0
    assert plan.env.id
    assert vars(plan.algorithm)["lr"] > 0


def kept(recipe: str) -> list[tuple[str, str, Any]]:
    """(section, field, value) of all that a recipe keeps."""
    made = presets.kept(recipe, presets.read("recipes", recipe))
    return [(section, *pair) for section, pairs in made.items() for pair in pairs.items()]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", [*TASKS, *EVERYWHERE])
def test_no_task_overrides_what_a_recipe_keeps(task: str, recipe: str) -> None:
    plan = plans.resolve(task, {"run": {"recipe": recipe}})
    keeps = kept(recipe)
    assert {("run", "algorithm"), ("run", "strategy")} <= {entry[:2] for entry in keeps}
    for section, name, value in keeps:
        used = plan.top if section == "run" else plan.sections[section]
        found = getattr(used, name)
        assert found == (tuple(value) if isinstance(found, tuple) else value), (section, name)
        assert plan.sources[f"{section}.{name}"] == f"recipe {recipe}, which keeps it"


@pytest.mark.parametrize("task", [*TASKS, *EVERYWHERE])
def test_ape_x_explores_by_its_ladder_whatever_the_task(task: str) -> None:
    """Tasks' own values made it 0.01 to the powers (Horgan et al. 2018: 0.4)."""
    plan = plans.resolve(task, {"run": {"recipe": "apex", "envs_per_worker": 4}})
    dqn, memory = plan.sections["dqn"], plan.memory
    powers, _ = ladder(plan, 1, 2)
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(4, 8)]
    assert list(dqn.epsilon_end**powers) == pytest.approx(expected)
    assert (dqn.epsilon_decay_steps, memory.alpha, memory.beta) == (0, 0.6, 0.4)
    assert memory.beta_steps == 0


def test_flags_win_over_what_a_recipe_keeps() -> None:
    flags = {"run": {"recipe": "apex"}, "dqn": {"epsilon_end": "0.2"}}
    plan = plans.resolve("cartpole", flags)
    assert plan.sections["dqn"].epsilon_end == 0.2
    assert plan.sources["dqn.epsilon_end"] == "flag"


def test_a_recipe_like_another_keeps_what_that_one_keeps() -> None:
    assert ("dqn", "double", True) in kept("dueling-dqn")
    assert ("run", "strategy", "hogwild") in kept("a3c")


@pytest.mark.parametrize("name", ["dqn.epsilon", "nonsense.lr", "nonsense", "dqn.n_step"])
def test_to_keep_what_is_not_set_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=f"recipe r keeps {name}, which it does not set"):
        presets.kept("r", {"about": "", "keeps": [name], "dqn": {"lr": 1.0}})


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_only_recipes_keep_values(file: Path) -> None:
    assert file.parent.name == "recipes" or "keeps" not in table(file)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_key_is_a_field_and_every_value_in_its_range(file: Path) -> None:
    for section, name, value in entries(table(file)):
        kind = sections.Top if section == "run" else kind_of(section)
        assert name in {field.name for field in fields(kind)}, f"[{section}] {name}"
        values.checked(f"[{section}] {name}", value, kind, name)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_preset_says_in_a_line_what_it_is(file: Path) -> None:
    about = table(file)["about"]
    assert 10 < len(about) <= 90
    assert "\n" not in about


@pytest.mark.parametrize("task", TASKS)
def test_sections_for_recipes_name_recipes(task: str) -> None:
    assert set(presets.read("tasks", task).get("for", {})) <= set(RECIPES)


@pytest.mark.parametrize("task", [*TASKS, "Acrobot-v1"])
def test_where_draws_are_prioritized_the_rate_is_a_quarter(task: str) -> None:
    """A task's own rate once hid the recipe's, and LunarLander was not learned."""
    rates = [
        plans.resolve(task, {"run": {"recipe": recipe}}).sections["dqn"].lr
        for recipe in ("dqn", "prioritized-dqn")
    ]
    assert rates[1] == pytest.approx(rates[0] / 4)


@pytest.mark.parametrize("room", ["algorithms", "strategies", "backends"])
def test_every_member_says_in_a_line_what_it_is(room: str) -> None:
    assert registry.names(room)
    for name in registry.names(room):
        assert len(registry.about(room, name)) > 10
