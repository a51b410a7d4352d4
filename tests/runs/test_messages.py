"""The lines at the end of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.roles.scores import Episode, Scores
from manyhands.runs import messages


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (0, "0 episodes in 7 s; none ended"),
        (76, "76 episodes in 7 s; return of the last 76: 20.0"),
        (250, "250 episodes in 7 s; return of the last 100: 20.0"),
    ],
)
def test_the_mean_is_of_as_many_as_ended(ended: int, told: str) -> None:
    scores = Scores(1)
    for _ in range(ended):
        scores.ended(Episode(20.0, 20, 0))
    progress: Any = SimpleNamespace(
        workers=SimpleNamespace(agent_steps=1000, updates=50, scores=scores),
        plan=SimpleNamespace(top=SimpleNamespace(until_solved=False)),
        wall_s=lambda: 7.0,
        bottleneck=lambda: "",
        solved=None,
        best=None,
        evaluation=None,
    )
    first = messages.closing_lines(progress, Path("run"))[0]
    assert first == f"1,000 agent steps, 50 updates, {told}"
