"""What became of the cells, read from their runs: a flat row each, their curves, their time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyhands.compare.folder import (
    ENDED,
    MEASURED,
    NOT_APPLICABLE,
    NOT_RUN,
    SOLVED,
    Folder,
    read_json,
)
from manyhands.compare.matrix import Cell
from manyhands.metrics import PARTS_OF_TIME
from manyhands.types import Array

SHARING = ("pull", "push")
AVERAGE = "charts/return_mean_100"
Row = dict[str, Any]


class Curve(NamedTuple):
    """The mean return of the last hundred episodes, as it was reported about once a second."""

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
    kept = folder.outcome(cell) or {"outcome": NOT_RUN}
    if cell.refusal:
        kept = {"outcome": NOT_APPLICABLE, "reason": cell.refusal}
    ended = kept["outcome"] in ENDED
    summary = read_json(folder.run(cell) / "summary.json") if ended else None
    if summary is None:
        return Result(cell, _row(cell, kept), Curve(*np.zeros((3, 0))), {})
    row = _row(cell, kept) | _numbers(summary) | _rates(summary, kept) | _solved(summary, kept)
    curve = read_curve(folder.run(cell) / "metrics.jsonl")
    return Result(cell, row, curve, summary["time_split"])


def _row(cell: Cell, kept: dict[str, Any]) -> Row:
    top = cell.plan.top if cell.plan else None
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
        "cores": kept.get("cores"),
        "beyond_cores": cell.processes > kept.get("cores", cell.processes),
        "outcome": kept["outcome"],
        "reason": kept.get("reason", ""),
    }


def _numbers(summary: dict[str, Any]) -> Row:
    staleness, faults = summary["staleness"], summary["faults"]
    return {
        **{n: summary[n] for n in ("episodes", "agent_steps", "updates", "wall_s")},
        "return_mean_100": summary["return_mean_100"],
        "best_return_mean_100": summary["best_return_mean_100"],
        "staleness_mean": staleness["mean"],
        "staleness_p95": staleness["p95"],
        "staleness_dropped": staleness["dropped"],
        "sharing": _share(summary["time_split"], SHARING),
        "restarts": faults["restarts"],
        "nonfinite_skipped": faults["nonfinite_skipped"],
        "peak_pss_mb": summary["peak_pss_mb"],
        "bottleneck": summary["bottleneck"],
        "commit": summary["commit"],
    }


def _rates(summary: dict[str, Any], kept: dict[str, Any]) -> Row:
    """Of the window in which everybody worked, where there was one; else the run's own."""
    if not kept.get("window"):
        return {name: summary[name] for name in ("agent_steps_per_s", "updates_per_s")}
    first, last = kept["window"]
    seconds = last["wall_s"] - first["wall_s"]
    return {f"{n}_per_s": (last[n] - first[n]) / seconds for n in ("agent_steps", "updates")}


def _solved(summary: dict[str, Any], kept: dict[str, Any]) -> Row:
    """To solve it, or, where it was not solved, what it was given: then it is a lower bound."""
    if kept["outcome"] == MEASURED:
        return {}
    at = summary["solved"] if kept["outcome"] == SOLVED else summary
    episodes = at["episodes"]
    return {
        "episodes_to_solve": episodes,
        "agent_steps_to_solve": at["agent_steps"],
        "seconds_to_solve": at["wall_s"],
        "seconds_per_episode": at["wall_s"] / episodes if episodes else None,
    }


def _share(split: dict[str, dict[str, float]], parts: Sequence[str]) -> float:
    """Of the time of all who learn: a role that never pulls or pushes shares nothing."""
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


def read_curve(path: Path) -> Curve:
    points = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                if row.get(AVERAGE) is not None:
                    points.append((row["wall_s"], row["agent_steps"], row[AVERAGE]))
    return Curve(*np.asarray(points, np.float64).reshape(-1, 3).T)
