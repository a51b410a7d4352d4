"""A study: recipes × workers × seeds, from flags and a TOML file.

```toml
task = "lunarlander"
recipes = ["dqn", "hogwild", "rare-pulls"]
workers = [1, 2, 4]
seeds = [1, 2, 3]              # or 3
minutes = 8
at_once = 32                   # threads of cells side by side, for tasks that wait; 0: one cell
first = [{ workers = 2, seed = 1 }]             # stages of cells that run before the rest
only = [{ recipe = "dqn", workers = 1 }, { workers = [2, 4] }]   # no other cells

[variants.rare-pulls]          # a recipe with other values, under its own name
recipe = "hogwild"
hogwild.sync_every = 8

[all]                          # for every recipe that has the section
dqn.lr = 1e-3
```

A flag overrides the file. A name in ``recipes`` is that of a variant or of a recipe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.config import plans, presets, registry, sections, values
from manyhands.types import BadRequest

Layer = dict[str, dict[str, Any]]
Choices = tuple[Mapping[str, Any], ...]  # of cells, by recipe, workers and seed
SOLVE, THROUGHPUT = "solve", "throughput"
MINUTES = {SOLVE: 10.0, THROUGHPUT: 1 / 3}
PLAIN_SETTINGS = ("threads", "envs_per_worker", "backend", "device", "threshold")
# The clock must count only training: no evaluations, and only the last checkpoint.
LEAN: Layer = {
    "evaluation": {"period_steps": 0},
    "checkpoint": {"period_minutes": 0.0, "replay": False},
}


class Entry(NamedTuple):
    """A row of the matrix: a recipe, perhaps with other values."""

    name: str
    recipe: str
    settings: Layer  # passed to train as flags


@dataclass(frozen=True)
class Study:
    task: str
    entries: tuple[Entry, ...]
    workers: tuple[int, ...]
    seeds: tuple[int, ...]
    metric: str = SOLVE
    minutes: float = 0.0  # for one cell; with throughput: for its measured part
    steps: int = 0  # for one cell, instead of minutes
    order: int = 1  # the seed that shuffles the cells
    at_once: int = 0  # threads of cells that run side by side; 0: one cell at a time
    first: Choices = ()  # stages of cells that run before the rest
    only: Choices = ()  # the cells that there are; empty: all

    @property
    def limit(self) -> str:
        """How long a cell may take, in words."""
        if self.metric == THROUGHPUT:
            return f"{60 * self.minutes:g} s measured"
        return f"{self.steps:,} agent steps" if self.steps else f"{self.minutes:g} minutes"

    @property
    def order_text(self) -> str:
        """In which order the cells ran, in words."""
        side_by_side = f"cells of at most {self.at_once} threads side by side"
        how = side_by_side if self.at_once else "one training at a time"
        return f"shuffled with seed {self.order}, {how}"

    def as_json(self) -> dict[str, Any]:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return own | {"entries": [entry._asdict() for entry in self.entries]}


FILE_KEYS = (
    "task", "recipes", "workers", "seeds", "metric", "minutes", "steps", "order", "at_once",
    "first", "only", "variants", "all",
)  # fmt: skip


def read(task_name: str, options: Mapping[str, Any], sections: Layer) -> Study:
    """The study that flags and file describe. What cannot be run is refused here."""
    table = _file(options.get("config", ""))
    typed = {key: options[key] for key in FILE_KEYS if key in options}
    if "minutes" in typed or "steps" in typed:  # one replaces the other
        table = {k: v for k, v in table.items() if k not in ("minutes", "steps")}
    table |= typed | ({"task": task_name} if task_name else {})
    if not table.get("task"):
        raise BadRequest("compare needs a task", "manyhands compare TASK --recipes …")
    if table.get("steps") and table.get("minutes"):
        raise BadRequest("--steps and --minutes were both given", "give one of them")
    metric = _metric(table)
    study = Study(
        task=str(table["task"]),
        entries=_entries(table, options, sections),
        workers=_numbers("--workers", table.get("workers", "1,2"), least=1),
        seeds=_seeds(table.get("seeds", 3)),
        metric=metric,
        minutes=0.0 if table.get("steps") else _minutes(table, metric),
        steps=_whole("--steps", table.get("steps", 0)),
        order=_whole("--order", table.get("order", 1)),
        at_once=_whole("--at-once", table.get("at_once", 0)),
        first=_choices("first", table.get("first", [])),
        only=_choices("only", table.get("only", [])),
    )
    if study.steps and metric == THROUGHPUT:
        raise BadRequest("--metric throughput measures by time, not --steps", "use --minutes")
    return study


def _metric(table: Mapping[str, Any]) -> str:
    metric = str(table.get("metric", SOLVE))
    if metric not in MINUTES:
        raise registry.unknown("--metric", metric, list(MINUTES))
    return metric


def _minutes(table: Mapping[str, Any], metric: str) -> float:
    minutes = table.get("minutes") or MINUTES[metric]
    return float(values.checked("--minutes", minutes, sections.Top, "minutes"))


def _file(name: str) -> dict[str, Any]:
    if not name:
        return {}
    try:
        table = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"--config {name} cannot be read: {error}", "give a TOML file") from None
    for key in table:
        if key not in FILE_KEYS:
            raise registry.unknown(f"{name}: key", key, list(FILE_KEYS))
    return table


# --- Numbers ------------------------------------------------------------------------------------


def _numbers(flag: str, given: Any, *, least: int) -> tuple[int, ...]:
    """From 1,2,4 or [1, 2, 4] or 4: each number once, in this order."""
    items = given.replace(",", " ").split() if isinstance(given, str) else given
    items = items if isinstance(items, list | tuple) else [items]
    numbers = tuple(dict.fromkeys(_whole(flag, item, least=least) for item in items))
    if not numbers:
        raise BadRequest(f"{flag} names no number", f"write {flag} 1,2,4")
    return numbers


def _seeds(given: Any) -> tuple[int, ...]:
    """5 means seeds 1 to 5; 3,7 and [7] list them."""
    if isinstance(given, list | tuple) or "," in str(given):
        return _numbers("--seeds", given, least=0)
    return tuple(range(1, 1 + _whole("--seeds", given, least=1)))


def _whole(flag: str, item: Any, least: int = 0) -> int:
    number = int(values.checked(flag, item, sections.Top, "seed"))  # a whole number ≥ 0
    if number < least:
        raise BadRequest(f"{flag} {item} is out of range", f"give at least {least}")
    return number


def _choices(key: str, given: Any) -> Choices:
    given = [given] if isinstance(given, dict) else given
    for choice in given:
        if not isinstance(choice, dict) or not set(choice) <= {"recipe", "workers", "seed"}:
            raise BadRequest(
                f"{key}: {choice!r} is not a choice of cells",
                f'write {key} = [{{ workers = 2, seed = 1 }}], with "recipe", "workers", "seed"',
            )
    return tuple(given)


# --- Recipes and their values -------------------------------------------------------------------


def _entries(
    table: Mapping[str, Any], options: Mapping[str, Any], sections: Layer
) -> tuple[Entry, ...]:
    names = table.get("recipes", "")
    names = [n for n in names.split(",") if n] if isinstance(names, str) else list(names)
    if not names:
        raise BadRequest("compare needs recipes", "write --recipes dqn,hogwild, or --config FILE")
    variants = table.get("variants", {})
    entries = [_entry(str(name), variants) for name in dict.fromkeys(names)]
    typed = {"run": {k: options[k] for k in PLAIN_SETTINGS if k in options}, **sections}
    everywhere = _over(_layer(table.get("all", {})), typed)
    task = str(table["task"])
    in_use = {entry.name: _sections(task, entry) for entry in entries}
    for section in everywhere:
        if section != "run" and not any(section in used for used in in_use.values()):
            raise BadRequest(
                f"--{section}.… is used by none of {', '.join(in_use)}",
                f"sections in use: {', '.join(sorted(set().union(*in_use.values())))}",
            )
    return tuple(_with(task, entry, everywhere, in_use[entry.name]) for entry in entries)


def _entry(name: str, variants: Mapping[str, Any]) -> Entry:
    table = dict(variants.get(name, {"recipe": name}))
    recipe = str(table.pop("recipe", ""))
    known = presets.names("recipes")
    if recipe not in known:
        raise registry.unknown("--recipes", recipe or name, [*variants, *known])
    if "/" in name or name.startswith("."):
        raise BadRequest(f"variant {name!r} cannot name a folder", "use letters and dashes")
    return Entry(name, recipe, _layer(table))


def _layer(table: Mapping[str, Any]) -> Layer:
    layer: Layer = {"run": {k: v for k, v in table.items() if not isinstance(v, dict)}}
    return layer | {k: dict(v) for k, v in table.items() if isinstance(v, dict)}


def _over(below: Layer, above: Mapping[str, Mapping[str, Any]]) -> Layer:
    names = dict.fromkeys([*below, *above])
    return {name: _merged(below.get(name, {}), above.get(name, {})) for name in names}


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Values above replace those below; tables of arguments are merged."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            merged[name] = {**below[name], **above[name]}
    return merged


def _sections(task: str, entry: Entry) -> set[str]:
    """The sections that the recipe uses with its own number of workers. Refuses bad values."""
    run = {**entry.settings.get("run", {}), "recipe": entry.recipe}
    return set(plans.resolve(task, {**entry.settings, "run": run}).sections)


def _with(task: str, entry: Entry, everywhere: Layer, used: set[str]) -> Entry:
    """Adds LEAN's values and those for all entries. The variant's own values win."""
    fitting = {name: values for name, values in everywhere.items() if name in {"run", *used}}
    complete = entry._replace(settings=_over(_over(LEAN, fitting), entry.settings))
    _sections(task, complete)  # refuses values that do not fit together
    return complete
