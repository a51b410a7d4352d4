"""Interquartile means over seeds, with bootstrap intervals (Agarwal et al. 2021, rliable).

The mean of the middle half of the runs: one very good or very bad seed moves it little. The
interval is a percentile bootstrap over seeds, stratified by column. Unlike rliable, we draw all
repetitions at once.

A run that was not solved is not left out. The time it was given is a lower bound of its time to
solve. We use that value, and the mean becomes a lower bound: "≥".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from manyhands.types import Array

REPETITIONS = 5000
LEVEL = 0.95
TRIMMED = 0.25  # at each end
EXACT, LEAST, MOST, UNKNOWN = "", "≥", "≤", "?"


class Estimate(NamedTuple):
    """An interquartile mean over seeds. One seed has no interval."""

    value: float
    low: float | None
    high: float | None
    seeds: int
    bound: str = EXACT  # whether the true value is equal to it, at least it or at most it


def interquartile_mean(values: Array) -> Array:
    """Over the last axis. With fewer than four values nothing is trimmed: the mean."""
    n = values.shape[-1]
    cut = int(TRIMMED * n)
    middle: Array = np.sort(values, axis=-1)[..., cut : n - cut]
    return np.asarray(middle.mean(-1))


def resampled(values: Array, rng: np.random.Generator, repetitions: int = REPETITIONS) -> Array:
    """[strata, n] -> [repetitions, strata, n]; each stratum is resampled separately."""
    strata, n = values.shape
    drawn = rng.integers(n, size=(repetitions, strata, n))
    return np.asarray(values[np.arange(strata)[None, :, None], drawn])


def middle_of(samples: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """The ends of the middle 95 % along the first axis."""
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(samples, [tail, 100 - tail], axis=0)
    return low, high


def strata_interval(values: Array, rng: np.random.Generator) -> tuple[float, float]:
    """[strata, n] -> the interval of the interquartile mean of all; rliable takes [n, tasks]."""
    samples = resampled(values, rng)
    low, high = middle_of(interquartile_mean(samples.reshape(len(samples), -1)))
    return float(low), float(high)


def estimate(values: list[float], *, bound: str = EXACT) -> Estimate:
    """From one value per seed. Deterministic: the bootstrap has a fixed seed."""
    own = np.asarray(values, np.float64)[None]
    value = float(interquartile_mean(own[0]))
    if len(values) < 2:
        return Estimate(value, None, None, len(values), bound)
    low, high = strata_interval(own, np.random.default_rng(0))
    return Estimate(value, low, high, len(values), bound)


def ratio(over: list[float], under: list[float], *, bounds: tuple[str, str]) -> Estimate | None:
    """IQM(over) / IQM(under), both resampled. None if its bound is unknown or under is 0."""
    bound = _bound(*bounds)
    top, bottom = np.asarray(over, np.float64), np.asarray(under, np.float64)
    if bound == UNKNOWN or not interquartile_mean(bottom):
        return None
    value = float(interquartile_mean(top) / interquartile_mean(bottom))
    fewest = min(len(over), len(under))
    if fewest < 2:
        return Estimate(value, None, None, fewest, bound)
    rng = np.random.default_rng(0)
    tops = interquartile_mean(resampled(top[None], rng)[:, 0])
    bottoms = interquartile_mean(resampled(bottom[None], rng)[:, 0])
    low, high = middle_of(tops / np.maximum(bottoms, 1e-12))
    return Estimate(value, float(low), float(high), fewest, bound)


def _bound(over: str, under: str) -> str:
    """The bound of a ratio. A denominator that is at least x makes the ratio at most y."""
    turned = {EXACT: EXACT, LEAST: MOST, MOST: LEAST}[under]
    if EXACT in (over, turned):
        return over or turned
    return over if over == turned else UNKNOWN


def band(curves: Array) -> tuple[Array, Array | None, Array | None]:
    """[seeds, points] -> the interquartile mean at each point and the ends of its interval."""
    middle = interquartile_mean(curves.T)
    n = len(curves)
    if n < 2:
        return middle, None, None
    drawn = np.random.default_rng(0).integers(n, size=(REPETITIONS // 5, n))  # whole curves
    low, high = middle_of(interquartile_mean(curves[drawn].swapaxes(1, 2)))
    return middle, low, high
