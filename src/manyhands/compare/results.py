"""Reads the cells' results from their runs: a flat row, a curve and a time split for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from manyhands.compare.folder import (
    CELLS,
    ENDED,
    FAILED,
    MEASURED,
    NOT_APPLICABLE,
    NOT_RUN,
    SOLVED,
    Folder,
)
from manyhands.compare.matrix import Cell
from manyhands.config import runfiles
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.runs import metrics_reading
from manyhands.runs.metrics_reading import AVERAGE, DAMAGE
from manyhands.types import Array

SHARING = ("pull", "push")
LONGEST_REASON = 200  # characters
Row = dict[str, Any]


class Curve(NamedTuple):
    """The mean return of the last 100 episodes, reported about once a second."""

    wall_s: Array
    agent_steps: Array
    score: Array


class Result(NamedTuple):
    cell: Cell
    row: Row
    curve: Curve
    time_split: dict[str, dict[str, float]]  # role -> part -> seconds

    @property
    def ended(self) -> bool:
        return self.row["outcome"] in ENDED


def read(folder: Folder, cells: Sequence[Cell]) -> list[Result]:
    return [_result(folder, cell) for cell in cells]


def _result(folder: Folder, cell: Cell) -> Result:
    outcome = folder.outcome(cell) or {"outcome": NOT_RUN}
    if cell.refusal:
        outcome = {"outcome": NOT_APPLICABLE, "reason": cell.refusal}
    nothing = Curve(*np.zeros((3, 0)))
    summary = folder.run_json(cell, "summary.json") if outcome["outcome"] in ENDED else None
    if summary is None:
        return Result(cell, _row(cell, outcome), nothing, {})
    try:
        row = _row(cell, outcome) | _numbers(summary)
        row |= _rates(summary, outcome) | _solved(summary, outcome)
        split = _split(summary["time_split"])
    except DAMAGE as error:
        damaged = {
            "outcome": FAILED,
            "reason": f"its files are damaged: {error!r}"[:LONGEST_REASON],
        }
        return Result(cell, _row(cell, damaged), nothing, {})
    return Result(cell, row, read_curve(folder, cell), split)


def _number(value: Any) -> Any:
    """A number, or None, which a run's files hold for NaN."""
    if value is not None:
        metrics_reading.number(value)
    return value


def _split(found: Any) -> dict[str, dict[str, float]]:
    return {
        str(role): {part: float(_number(parts[part])) for part in PARTS_OF_TIME}
        for role, parts in dict(found).items()
    }


def _row(cell: Cell, outcome: dict[str, Any]) -> Row:
    top = cell.plan.top if cell.plan else None
    cores = outcome.get("cores") if type(outcome.get("cores")) is int else None
    return {
        "cell": cell.name,
        "name": cell.entry,
        "recipe": top.recipe if top else "",
        "algorithm": top.algorithm if top else "",
        "strategy": top.strategy if top else "",
        "backend": cell.plan.backend if cell.plan else "",
        "workers": cell.workers,
        "seed": cell.seed,
        "processes": cell.processes,
        "cores": cores,
        "beyond_cores": cores is not None and cell.processes > cores,
        "outcome": outcome["outcome"],
        "reason": outcome.get("reason", ""),
    }


def _numbers(summary: dict[str, Any]) -> Row:
    staleness, faults = summary["staleness"], summary["faults"]
    numbers = {
        **{n: summary[n] for n in ("episodes", "agent_steps", "updates", "wall_s")},
        "return_mean_100": summary["return_mean_100"],
        "best_return_mean_100": summary["best_return_mean_100"],
        "staleness_mean": staleness["mean"],
        "staleness_p95": staleness["p95"],
        "staleness_dropped": staleness["dropped"],
        "actors_staleness_mean": staleness.get("actors", {}).get("mean"),
        "sharing": _share(_split(summary["time_split"]), SHARING),
        "restarts": faults["restarts"],
        "nonfinite_skipped": faults["nonfinite_skipped"],
        "peak_pss_mb": summary["peak_pss_mb"],
    }
    texts = {name: str(summary[name]) for name in ("bottleneck", "commit")}
    return {name: _number(value) for name, value in numbers.items()} | texts


def _rates(summary: dict[str, Any], outcome: dict[str, Any]) -> Row:
    """Rates of the measured window if there is one, else of the whole run."""
    if not outcome.get("window"):
        return {name: _number(summary[name]) for name in ("agent_steps_per_s", "updates_per_s")}
    first, last = outcome["window"]
    seconds = last["wall_s"] - first["wall_s"]
    return {
        f"{n}_per_s": _number((last[n] - first[n]) / seconds) for n in ("agent_steps", "updates")
    }


def _solved(summary: dict[str, Any], outcome: dict[str, Any]) -> Row:
    """What solving took. If it was not solved: what it used, which is a lower bound."""
    if outcome["outcome"] == MEASURED:
        return {}
    at = summary["solved"] if outcome["outcome"] == SOLVED else summary
    episodes, steps, wall_s = (_number(at[n]) for n in ("episodes", "agent_steps", "wall_s"))
    return {
        "episodes_to_solve": episodes,
        "agent_steps_to_solve": steps,
        "seconds_to_solve": wall_s,
        "seconds_per_episode": wall_s / episodes if episodes else None,
    }


def _share(split: dict[str, dict[str, float]], parts: Sequence[str]) -> float:
    """The share of the learners' time. A role that never pulls or pushes is left out."""
    roles = [r for r in split.values() if any(r[part] for part in SHARING)] or list(split.values())
    whole = sum(sum(role.values()) for role in roles)
    return sum(role[part] for role in roles for part in parts) / whole if whole else 0.0


def time_rows(results: Sequence[Result]) -> list[Row]:
    """A row for each part of each role's time."""
    return [
        {
            "cell": result.cell.name,
            "role": role,
            "part": part,
            "seconds": parts[part],
            "share": parts[part] / (sum(parts.values()) or 1.0),
        }
        for result in results
        for role, parts in result.time_split.items()
        for part in PARTS_OF_TIME
    ]


def curve_rows(results: Sequence[Result]) -> list[Row]:
    return [
        {"cell": result.cell.name, "wall_s": wall_s, "agent_steps": int(steps), "score": score}
        for result in results
        for wall_s, steps, score in zip(*map(np.ndarray.tolist, result.curve), strict=True)
    ]


def read_curve(folder: Folder, cell: Cell) -> Curve:
    points = list[tuple[float, ...]]()
    with suppress(OSError), runfiles.opened(folder.path, CELLS, cell.name) as run:
        for row in metrics_reading.rows(run, [AVERAGE]):
            if AVERAGE in row:
                points.append((row["wall_s"], row["agent_steps"], row[AVERAGE]))
    return Curve(*np.asarray(points, np.float64).reshape(-1, 3).T)
