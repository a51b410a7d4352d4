"""What is to be compared: recipes × workers × seeds, from flags and a TOML file.

```toml
task = "lunarlander"
recipes = ["dqn", "hogwild", "rare-looks"]
workers = [1, 2, 4]
seeds = [1, 2, 3]              # or 3
minutes = 8
first = [{ workers = 2, seed = 1 }]

[variants.rare-looks]          # a recipe with other values, under a name of its own
recipe = "hogwild"
hogwild.sync_every = 8

[all]                          # for every recipe that has the section
dqn.lr = 1e-3
```

A flag is stronger than the file; a name in ``recipes`` is a variant's or a recipe's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import config, registry
from manyhands.types import BadRequest

Layer = dict[str, dict[str, Any]]
SOLVE, THROUGHPUT = "solve", "throughput"
MINUTES = {SOLVE: 10.0, THROUGHPUT: 1 / 3}
PLAIN_SETTINGS = ("threads", "envs_per_worker", "backend", "device", "threshold")
# What is not training would be counted as time: no evaluations, no checkpoint but the last.
LEAN: Layer = {
    "evaluation": {"period_steps": 0},
    "checkpoint": {"period_minutes": 0.0, "replay": False},
}


class Entry(NamedTuple):
    """A row of the matrix: a recipe, perhaps with other values."""

    name: str
    recipe: str
    settings: Layer  # as flags of train


@dataclass(frozen=True)
class Study:
    task: str
    entries: tuple[Entry, ...]
    workers: tuple[int, ...]
    seeds: tuple[int, ...]
    metric: str = SOLVE
    minutes: float = 0.0  # of a cell; of its measured part where throughput is compared
    steps: int = 0  # of a cell, instead
    order: int = 1  # the seed of the order
    first: tuple[Mapping[str, Any], ...] = ()  # what comes before the rest, stage by stage

    @property
    def limit(self) -> str:
        """How long a cell may take, in words."""
        if self.metric == THROUGHPUT:
            return f"{60 * self.minutes:g} s measured"
        return f"{self.steps:,} agent steps" if self.steps else f"{self.minutes:g} minutes"

    def as_json(self) -> dict[str, Any]:
        made = {field.name: getattr(self, field.name) for field in fields(self)}
        return made | {"entries": [entry._asdict() for entry in self.entries]}


FILE_KEYS = (
    "task", "recipes", "workers", "seeds", "metric", "minutes", "steps", "order", "first",
    "variants", "all",
)  # fmt: skip


def read(place: str, own: Mapping[str, Any], sections: Layer) -> Study:
    """The study that was asked for; everything that cannot be is refused here."""
    table = _file(own.get("config", ""))
    typed = {key: own[key] for key in FILE_KEYS if key in own}
    if "minutes" in typed or "steps" in typed:  # one of them takes the other's place
        table = {k: v for k, v in table.items() if k not in ("minutes", "steps")}
    table |= typed | ({"task": place} if place else {})
    if not table.get("task"):
        raise BadRequest("compare needs a task", "manyhands compare TASK --recipes …")
    if table.get("steps") and table.get("minutes"):
        raise BadRequest("--steps and --minutes were both given", "give one of them")
    metric = _metric(table)
    study = Study(
        task=str(table["task"]),
        entries=_entries(table, own, sections),
        workers=_numbers("--workers", table.get("workers", "1,2"), least=1),
        seeds=_seeds(table.get("seeds", 3)),
        metric=metric,
        minutes=0.0 if table.get("steps") else _minutes(table, metric),
        steps=_whole("--steps", table.get("steps", 0)),
        order=_whole("--order", table.get("order", 1)),
        first=_first(table.get("first", [])),
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
    return float(config.checked("--minutes", minutes, config.Top, "minutes"))


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
    """1,2,4 or [1, 2, 4] or 4; each once, in the order given."""
    items = given.replace(",", " ").split() if isinstance(given, str) else given
    items = items if isinstance(items, list | tuple) else [items]
    numbers = tuple(dict.fromkeys(_whole(flag, item, least=least) for item in items))
    if not numbers:
        raise BadRequest(f"{flag} names no number", f"write {flag} 1,2,4")
    return numbers


def _seeds(given: Any) -> tuple[int, ...]:
    """5 is seeds 1 to 5; 3,7 and [7] are those."""
    if isinstance(given, list | tuple) or "," in str(given):
        return _numbers("--seeds", given, least=0)
    return tuple(range(1, 1 + _whole("--seeds", given, least=1)))


def _whole(flag: str, item: Any, least: int = 0) -> int:
    number = int(config.checked(flag, item, config.Top, "seed"))  # a whole number from 0 on
    if number < least:
        raise BadRequest(f"{flag} {item} is out of range", f"give at least {least}")
    return number


def _first(stages: Any) -> tuple[Mapping[str, Any], ...]:
    stages = [stages] if isinstance(stages, dict) else stages
    for stage in stages:
        if not isinstance(stage, dict) or not set(stage) <= {"recipe", "workers", "seed"}:
            raise BadRequest(
                f"first: {stage!r} is not a choice of cells",
                'write first = [{ workers = 2, seed = 1 }], with "recipe", "workers", "seed"',
            )
    return tuple(stages)


# --- Recipes and their values -------------------------------------------------------------------


def _entries(
    table: Mapping[str, Any], own: Mapping[str, Any], sections: Layer
) -> tuple[Entry, ...]:
    names = table.get("recipes", "")
    names = [n for n in names.split(",") if n] if isinstance(names, str) else list(names)
    if not names:
        raise BadRequest("compare needs recipes", "write --recipes dqn,hogwild, or --config FILE")
    variants = table.get("variants", {})
    entries = [_entry(str(name), variants) for name in dict.fromkeys(names)]
    typed = {"run": {k: own[k] for k in PLAIN_SETTINGS if k in own}, **sections}
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
    known = config.preset_names("recipes")
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
    return {name: {**below.get(name, {}), **above.get(name, {})} for name in names}


def _sections(task: str, entry: Entry) -> set[str]:
    """Those of the recipe with its own number of workers; whatever is wrong with it is said."""
    run = {**entry.settings.get("run", {}), "recipe": entry.recipe}
    return set(config.resolve(task, {**entry.settings, "run": run}).sections)


def _with(task: str, entry: Entry, everywhere: Layer, used: set[str]) -> Entry:
    """Lean unless told otherwise, then what holds for all, then the variant's own."""
    fitting = {name: values for name, values in everywhere.items() if name in {"run", *used}}
    made = entry._replace(settings=_over(_over(LEAN, fitting), entry.settings))
    _sections(task, made)
    return made
