"""Tidy CSV tables: one row per cell, estimate, part of time, or point of a curve."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from manyhands.compare.folder import FAILED, unwritable
from manyhands.compare.groups import Comparison
from manyhands.compare.origin import commits, elsewhere, seeds
from manyhands.compare.results import Row, curve_rows, time_rows
from manyhands.config import runfiles

FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r")


def group_rows(comparison: Comparison) -> list[Row]:
    """A row for each measure of each recipe and number of workers."""
    return [
        {
            "name": group.name,
            "workers": group.workers,
            "measure": measure,
            "iqm": found.value,
            "low": found.low,
            "high": found.high,
            "bound": found.bound,
            "seeds": found.seeds,
            "solved": group.solved,
            "failed": group.count(FAILED),
            "seed_list": " ".join(map(str, seeds(group.results))),
            "commits": " ".join(commits(group.results)),
            "other_commit": bool(elsewhere(comparison, group)),
            "baseline": _baseline(comparison, group.name, measure),
        }
        for group in comparison.groups.values()
        for measure, found in group.measures.items()
    ]


def _baseline(comparison: Comparison, name: str, measure: str) -> str:
    if measure not in ("speed_up", "efficiency") or name not in comparison.baselines:
        return ""
    base, workers = comparison.baselines[name]
    return f"{base}-w{workers}"


def write(
    folder: Path, comparison: Comparison, invocations: Sequence[dict[str, Any]]
) -> list[Path]:
    """cells.csv, estimates.csv, time.csv, curves.csv, and all but the curves as comparison.json."""
    cells = [result.row for result in comparison.results]
    tables = {
        "cells": cells,
        "estimates": group_rows(comparison),
        "time": time_rows(comparison.results),
    }
    whole = {"study": comparison.study.as_json(), "sittings": list(invocations), **tables}
    texts = {f"{name}.csv": as_csv(rows) for name, rows in tables.items()}
    texts["curves.csv"] = as_csv(curve_rows(comparison.results))
    texts["comparison.json"] = json.dumps(whole, indent=1, default=list) + "\n"
    return [_written(folder / name, text) for name, text in texts.items()]


def _written(path: Path, text: str) -> Path:
    try:
        with runfiles.replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def as_csv(rows: Sequence[Row]) -> str:
    """With a column for each field of any row. No cell is a spreadsheet formula."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _inert(value: Any) -> Any:
    """Puts a quote before text that a spreadsheet would compute. It does not show the quote."""
    risky = isinstance(value, str) and value.startswith(FORMULA_BEGINS) and not _is_number(value)
    return f"'{value}" if risky else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
