"""The cells of a study: which make sense, their order, and the command line of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from manyhands.compare.study import SOLVE, Choices, Entry, Study
from manyhands.config import plans
from manyhands.runs import progress
from manyhands.types import BadRequest

NOT_ASKED = "the study leaves it out"
START_MINUTES = 5.0  # the longest time in which all workers of a cell must have started


class Cell(NamedTuple):
    """One training."""

    entry: str
    workers: int
    seed: int
    words: tuple[str, ...]  # the arguments of train, without --out
    plan: plans.Plan | None  # None if config refuses it
    refusal: str = ""  # why config refuses it

    @property
    def name(self) -> str:
        return f"{self.entry}-w{self.workers}-s{self.seed}"

    @property
    def title(self) -> str:
        workers = f"{self.workers} worker" + "s" * (self.workers > 1)
        return f"{self.entry}, {workers}, seed {self.seed}"

    @property
    def processes(self) -> int:
        """How many compute at the same time. The main process only watches, so it is left out."""
        return 0 if self.plan is None else self.plan.processes + self.plan.hosted

    @property
    def threads(self) -> int:
        """Of all these processes."""
        each = 1 if self.plan is None else progress.resources(self.plan)
        return self.processes * each


def cells(study: Study) -> list[Cell]:
    """Every cell, in the order of the lists. Config checks each; nothing is run."""
    all_cells = [
        _cell(study, entry, workers, seed)
        for entry in study.entries
        for workers in study.workers
        for seed in study.seeds
    ]
    if all(cell.refusal for cell in all_cells):  # the request itself is wrong: refuse it
        first = all_cells[0]
        plans.resolve(study.task, _flags(study, study.entries[0], first.workers, first.seed))
        raise BadRequest("no cell of this study can run", 'let "only" choose other cells')
    return all_cells


def _flags(study: Study, entry: Entry, workers: int, seed: int) -> dict[str, dict[str, Any]]:
    run = {**entry.settings["run"], "recipe": entry.recipe, "workers": workers, "seed": seed}
    return {**entry.settings, "run": run | _end(study)}


def _cell(study: Study, entry: Entry, workers: int, seed: int) -> Cell:
    flags = _flags(study, entry, workers, seed)
    words = ("train", study.task, *_words(flags), "--quiet")
    if study.only and _chosen(study.only, entry.name, workers, seed) is None:
        return Cell(entry.name, workers, seed, words, None, NOT_ASKED)
    try:
        plan = plans.resolve(study.task, flags)
    except BadRequest as refusal:
        return Cell(entry.name, workers, seed, words, None, refusal.what)
    return Cell(entry.name, workers, seed, words, plan)


def _end(study: Study) -> dict[str, Any]:
    if study.metric != SOLVE:  # the runner stops it earlier, when it has measured it
        return {"minutes": START_MINUTES + study.minutes}
    limit = {"steps": study.steps} if study.steps else {"minutes": study.minutes}
    return {"until_solved": True, **limit}


def _words(settings: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"--{_flag(section, name)}={_text(value)}"
        for section, values in settings.items()
        for name, value in values.items()
    ]


def _flag(section: str, name: str) -> str:
    flag = name if section == "run" else f"{section}.{name}"
    return flag.replace("_", "-")


def _text(value: Any) -> str:
    if isinstance(value, dict):  # an environment's arguments
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# --- Order --------------------------------------------------------------------------------------


def in_order(study: Study, all_cells: Sequence[Cell]) -> list[Cell]:
    """The cells that make sense, shuffled, so that other load on the machine favours no recipe.

    ``first`` names stages that run before the rest; each stage is shuffled.
    """
    order = np.random.default_rng(study.order).permutation(len(all_cells))
    shuffled = [all_cells[i] for i in order]
    return [c for c in sorted(shuffled, key=lambda c: _stage(study, c)) if not c.refusal]


def _stage(study: Study, cell: Cell) -> int:
    found = _chosen(study.first, cell.entry, cell.workers, cell.seed)
    return len(study.first) if found is None else found


def _chosen(choices: Choices, recipe: str, workers: int, seed: int) -> int | None:
    """The first choice that a cell is in."""
    known = {"recipe": recipe, "workers": workers, "seed": seed}
    for number, choice in enumerate(choices):
        if all(known[key] in _as_list(wanted) for key, wanted in choice.items()):
            return number
    return None


def _as_list(chosen: Any) -> list[Any]:
    return chosen if isinstance(chosen, list) else [chosen]
