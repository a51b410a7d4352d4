"""Evaluations of a run that is resumed with another period."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.config.sections import Checkpoint, Evaluation
from manyhands.runs.schedule import Schedule


@pytest.mark.parametrize(
    ("period", "saved", "then"),
    [
        (1000, None, 3000),  # there were none
        (1000, 25_000, 3000),
        (25_000, 3000, 25_000),
        (0, 3000, math.inf),
        (0, None, math.inf),
        (1000, 3000, 3000),  # as before
        (1000, 2000, 2000),  # due, and not done yet
    ],
)
def test_a_new_evaluation_period_counts_at_once(
    period: int, saved: float | None, then: float
) -> None:
    plan: Any = SimpleNamespace(evaluation=Evaluation(period), checkpoint=Checkpoint())
    schedule = Schedule(plan)
    schedule.restore(saved, 2400)
    assert schedule.next_evaluation == then
