"""The cells of a study: which make sense, in what order they run, what each is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from manyhands import config
from manyhands.compare.study import SOLVE, Entry, Study
from manyhands.types import BadRequest

START_MINUTES = 5.0  # a cell of fixed time may take so long until everybody has begun


class Cell(NamedTuple):
    """One training."""

    entry: str
    workers: int
    seed: int
    words: tuple[str, ...]  # of train, without --out
    plan: config.Plan | None  # none where it makes no sense
    refusal: str = ""  # why

    @property
    def name(self) -> str:
        return f"{self.entry}-w{self.workers}-s{self.seed}"

    @property
    def title(self) -> str:
        workers = f"{self.workers} worker" + "s" * (self.workers > 1)
        return f"{self.entry}, {workers}, seed {self.seed}"

    @property
    def processes(self) -> int:
        """Those that compute at the same time; main, which looks on, is not counted."""
        return 0 if self.plan is None else self.plan.hands + self.plan.hosted


def cells(study: Study) -> list[Cell]:
    """Every cell, in the order of the lists. Nothing is run; config's own checks are asked."""
    made = [
        _cell(study, entry, workers, seed)
        for entry in study.entries
        for workers in study.workers
        for seed in study.seeds
    ]
    if all(cell.refusal for cell in made):  # then it is the request that makes no sense
        config.resolve(study.task, _flags(study, study.entries[0], made[0].workers, made[0].seed))
    return made


def _flags(study: Study, entry: Entry, workers: int, seed: int) -> dict[str, dict[str, Any]]:
    run = {**entry.settings["run"], "recipe": entry.recipe, "workers": workers, "seed": seed}
    return {**entry.settings, "run": run | _end(study)}


def _cell(study: Study, entry: Entry, workers: int, seed: int) -> Cell:
    flags = _flags(study, entry, workers, seed)
    words = ("train", study.task, *_words(flags), "--quiet")
    try:
        plan = config.resolve(study.task, flags)
    except BadRequest as refusal:
        return Cell(entry.name, workers, seed, words, None, refusal.what)
    return Cell(entry.name, workers, seed, words, plan)


def _end(study: Study) -> dict[str, Any]:
    if study.metric != SOLVE:  # it is stopped earlier, when it has been measured
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
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# --- Order --------------------------------------------------------------------------------------


def in_order(study: Study, made: Sequence[Cell]) -> list[Cell]:
    """Those that make sense, shuffled, so that what else the machine does favours nobody.

    ``first`` names stages that come before the rest; within a stage the order is shuffled.
    """
    shuffled = np.random.default_rng(study.order).permutation(len(made))
    ranked = [(_stage(study, made[i]), place, made[i]) for place, i in enumerate(shuffled)]
    return [cell for *_, cell in sorted(ranked, key=lambda r: r[:2]) if not cell.refusal]


def _stage(study: Study, cell: Cell) -> int:
    known = {"recipe": cell.entry, "workers": cell.workers, "seed": cell.seed}
    for number, stage in enumerate(study.first):
        if all(known[key] in _several(wanted) for key, wanted in stage.items()):
            return number
    return len(study.first)


def _several(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]
