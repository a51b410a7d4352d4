"""Interquartile means and their intervals: which numbers a few seeds support, and which not.

As Agarwal et al. 2021 (rliable): the middle half of the runs is averaged, which one lucky or one
lost seed cannot move far, and the interval is a percentile bootstrap over seeds in which every
column (stratum) is drawn from on its own. Unlike theirs it is drawn for all repetitions at once.

A run that was not solved is not left out. Its time to solve is at least the time it was given, so
that value takes its place and the mean becomes a bound, which is said: "≥".
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
    bound: str = EXACT  # what the value is of the true one: itself, at least, at most


def interquartile_mean(values: Array) -> Array:
    """Over the last axis. With fewer than four values nothing is trimmed: the mean."""
    n = values.shape[-1]
    cut = int(TRIMMED * n)
    middle: Array = np.sort(values, axis=-1)[..., cut : n - cut]
    return np.asarray(middle.mean(-1))


def resampled(values: Array, rng: np.random.Generator, repetitions: int = REPETITIONS) -> Array:
    """[strata, n] -> [repetitions, strata, n], each stratum drawn from on its own."""
    strata, n = values.shape
    drawn = rng.integers(n, size=(repetitions, strata, n))
    return np.asarray(values[np.arange(strata)[None, :, None], drawn])


def middle_of(samples: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """The ends of the middle 95 % along the first axis."""
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(samples, [tail, 100 - tail], axis=0)
    return low, high


def strata_interval(values: Array, rng: np.random.Generator) -> tuple[float, float]:
    """[strata, n]: the interval of the interquartile mean of all, as rliable's of [n, tasks]."""
    samples = resampled(values, rng)
    low, high = middle_of(interquartile_mean(samples.reshape(len(samples), -1)))
    return float(low), float(high)


def estimate(values: list[float], *, bound: str = EXACT) -> Estimate:
    """Of one value a seed; the same for the same values, whoever asks."""
    own = np.asarray(values, np.float64)[None]
    value = float(interquartile_mean(own[0]))
    if len(values) < 2:
        return Estimate(value, None, None, len(values), bound)
    low, high = strata_interval(own, np.random.default_rng(0))
    return Estimate(value, low, high, len(values), bound)


def ratio(over: list[float], under: list[float], *, bounds: tuple[str, str]) -> Estimate | None:
    """IQM(over) / IQM(under), both resampled; None where nothing can be said of it."""
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
    """Of a ratio: at least if the numerator is, at most if the denominator is at least."""
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
