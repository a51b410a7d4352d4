"""Interquartile means and intervals: against rliable, and against loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.compare import statistics
from manyhands.compare.curves import BY_TIME, last_scores
from manyhands.compare.results import Curve
from manyhands.compare.statistics import EXACT, LEAST, MOST, Estimate

numbers = st.floats(-1e6, 1e6)


def slow_iqm(values: list[float]) -> float:
    """Sort, drop the lowest and the highest quarter (rounded down), average the rest."""
    ordered = sorted(values)
    drop = len(ordered) // 4
    kept = ordered[drop : len(ordered) - drop]
    return sum(kept) / len(kept)


@settings(deadline=None, max_examples=40)
@given(st.lists(numbers, min_size=1, max_size=40))
def test_iqm_is_the_mean_of_the_middle_half(values: list[float]) -> None:
    found = statistics.interquartile_mean(np.array(values))
    assert float(found) == pytest.approx(slow_iqm(values), rel=1e-9, abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=12), st.floats(0, 1e6), st.data())
def test_what_stands_for_an_unsolved_seed_makes_a_lower_bound(
    values: list[float], more: float, data: st.DataObject
) -> None:
    """However much later it would have been solved, the mean cannot become smaller."""
    place = data.draw(st.integers(0, len(values) - 1))
    later = [value + more * (at == place) for at, value in enumerate(values)]
    assert slow_iqm(later) >= slow_iqm(values) - 1e-6
    assert statistics.estimate(later).value >= statistics.estimate(values).value - 1e-6


@pytest.mark.parametrize(("runs", "tasks"), [(3, 1), (5, 1), (10, 1), (10, 4)])
def test_iqm_and_interval_are_those_of_rliable(runs: int, tasks: int) -> None:
    library = pytest.importorskip("rliable.library")
    metrics = pytest.importorskip("rliable.metrics")
    scores = np.random.default_rng(runs).gamma(2.0, 50.0, (runs, tasks))
    np.random.seed(0)  # noqa: NPY002  rliable draws from the global stream
    points, ends = library.get_interval_estimates(
        {"a": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=5000
    )
    assert float(statistics.interquartile_mean(scores.reshape(-1))) == pytest.approx(points["a"][0])
    low, high = statistics.strata_interval(scores.T, np.random.default_rng(0))
    spread = float(ends["a"][1, 0] - ends["a"][0, 0])
    assert low == pytest.approx(ends["a"][0, 0], abs=0.05 * spread)
    assert high == pytest.approx(ends["a"][1, 0], abs=0.05 * spread)


def test_resampling_keeps_strata_apart() -> None:
    values = np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    drawn = statistics.resampled(values, np.random.default_rng(1), 200)
    assert drawn.shape == (200, 2, 3)
    assert set(drawn[:, 0].ravel()) == {1.0, 2.0, 3.0}
    assert set(drawn[:, 1].ravel()) == {10.0, 20.0, 30.0}
    assert len({tuple(row) for row in drawn[:, 0]}) > 20  # with replacement, in all orders


def test_one_seed_has_no_interval() -> None:
    assert statistics.estimate([7.0]) == Estimate(7.0, None, None, 1)
    found = statistics.ratio([8.0], [2.0, 2.0], bounds=(EXACT, EXACT))
    assert found is not None
    assert found[:3] == (4.0, None, None)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(1, 1e3), min_size=2, max_size=6))
def test_intervals_hold_the_estimate_and_repeat(values: list[float]) -> None:
    found = statistics.estimate(values)
    assert found.low is not None
    assert found.high is not None
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found == statistics.estimate(values)


@pytest.mark.parametrize(
    ("over", "under", "bound"),
    [
        (EXACT, EXACT, EXACT),
        (LEAST, EXACT, LEAST),  # the baseline took at least that: the speed-up is at least this
        (EXACT, LEAST, MOST),
        (LEAST, LEAST, None),  # nothing can be said
    ],
)
def test_bounds_of_a_ratio(over: str, under: str, bound: str | None) -> None:
    found = statistics.ratio([4.0, 6.0], [2.0, 2.0], bounds=(over, under))
    if bound is None:
        assert found is None
    else:
        assert found is not None
        assert found.bound == bound
        assert found.value == pytest.approx(2.5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 100), numbers), min_size=1, max_size=20), st.floats(0, 120))
def test_a_curve_is_held_until_its_next_point(points: list[tuple[float, float]], at: float) -> None:
    points = sorted(points, key=lambda point: point[0])
    curve = Curve(
        np.array([t for t, _ in points]), np.zeros(len(points)), np.array([s for _, s in points])
    )
    before = [score for time, score in points if time <= at]
    expected = before[-1] if before else points[0][1]
    assert last_scores(curve, BY_TIME, np.array([at]))[0] == expected


def test_bands_are_means_of_whole_curves() -> None:
    curves = np.array([[0.0, 1.0, 2.0], [2.0, 3.0, 4.0], [4.0, 5.0, 9.0]])
    middle, low, high = statistics.band(curves)
    assert middle == pytest.approx([2.0, 3.0, 5.0])
    assert low is not None
    assert high is not None
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert statistics.band(curves[:1])[1:] == (None, None)
