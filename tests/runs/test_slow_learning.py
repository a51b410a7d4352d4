"""It must learn: the real tasks, by the recipes as they are, whatever the seed.

Minutes each; run with `make slow`. The committed figures are in benchmarks/results/.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import manyhands as mh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("recipe", ["dqn", "double-dqn"])
@pytest.mark.parametrize("task", ["cartpole", "lunarlander"])
def test_solves(task: str, recipe: str, seed: int, tmp_path: Path) -> None:
    run = mh.train(
        task, recipe=recipe, seed=seed, until_solved=True, out=tmp_path / "run", quiet=True
    )
    assert run.summary["solved"] is not None, run.summary["best_return_mean_100"]


def test_breakout_leaves_chance_behind(tmp_path: Path) -> None:
    """A mean of 10 within 3.2 million frames; a random player scores 1.7."""
    run = mh.train(
        "breakout",
        recipe="dqn",
        steps=800_000,
        threshold=10.0,
        until_solved=True,
        out=tmp_path / "run",
    )
    assert run.summary["solved"] is not None, run.summary["best_return_mean_100"]
