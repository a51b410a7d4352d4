"""Reads a run's metrics.jsonl. The file may be cut by a kill, or come from another source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from manyhands.config.runfiles import Directory
from manyhands.runs.metrics import LARGEST, METRICS

AVERAGE, EPISODE = "charts/return_mean_100", "charts/episodic_return"
EVALUATION, SPEED = "charts/evaluation_return", "charts/SPS"
MOST = 1e15  # larger numbers are damage
# What a damaged file may raise when it is read.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
Row = dict[str, float]


def rows(run: Directory, names: Sequence[str]) -> Iterator[Row]:
    """Of each line: ``agent_steps``, ``wall_s``, and those of the names that it has.

    Lines that are not ours are left out. A killed and resumed run has lines for some steps twice.
    """
    for line in run.lines(METRICS, LARGEST):
        with suppress(*DAMAGE):
            found = json.loads(line)
            having = [name for name in names if found.get(name) is not None]
            yield {name: number(found[name]) for name in ("agent_steps", "wall_s", *having)}


def number(value: Any) -> float:
    if not (type(value) in (int, float) and abs(value) < MOST):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
