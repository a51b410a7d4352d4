"""Averages the curves of several seeds: the interquartile mean on a common grid, with interval.

A run that has ended keeps its last score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from manyhands.compare.results import Curve, Result
from manyhands.compare.statistics import band
from manyhands.types import Array

POINTS = 120
BY_TIME, BY_STEPS = "wall_s", "agent_steps"


class Band(NamedTuple):
    at: Array
    middle: Array
    low: Array | None  # None with one seed
    high: Array | None
    seeds: int


def bands(results: Sequence[Result], by: str) -> Band | None:
    """None if no seed has a score."""
    curves = [result.curve for result in results if len(result.curve.score)]
    if not curves:
        return None
    ends = [getattr(curve, by)[-1] for curve in curves]
    begins = [getattr(curve, by)[0] for curve in curves]
    grid = np.linspace(max(begins), max(ends), POINTS)  # from where all seeds have a score
    middle, low, high = band(np.stack([last_scores(curve, by, grid) for curve in curves]))
    return Band(grid, middle, low, high, len(curves))


def last_scores(curve: Curve, by: str, grid: Array) -> Array:
    """The newest score at each point of the grid."""
    at = np.searchsorted(getattr(curve, by), grid, side="right") - 1
    return np.asarray(curve.score[np.clip(at, 0, None)])
