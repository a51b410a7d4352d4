"""One process in the real environment, several that fit a model of it and imagine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.config import plans
from manyhands.types import BadRequest

SMALL: dict[str, Any] = {
    "recipe": "parallel-dyna-q",
    "dyna_q": {
        "warmup_steps": 100, "batch_size": 16, "steps_per_update": 2, "model_hidden": (16,)
    },
    "memory": {"capacity": 2000},
    "network": {"hidden": (16,)},
    "evaluation": {"period_steps": 0},
    "threads": 1,
    "quiet": True,
}  # fmt: skip


def test_workers_are_learners_of_one_actor() -> None:
    plan = plans.resolve("cartpole", {"run": {"recipe": "parallel-dyna-q", "workers": 3}})
    assert (plan.top.actors, plan.top.learners, plan.top.workers) == (1, 3, 1)
    assert plan.top.envs_per_worker == 1
    with pytest.raises(BadRequest, match="has one environment"):
        plans.resolve("cartpole", {"run": {"recipe": "parallel-dyna-q", "actors": 2}})


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize("strategy", ["hogwild", "parameter_server", "allreduce"])
def test_it_survives_the_death_of_a_learner(strategy: str, tmp_path: Path) -> None:
    run = mh.Run("cartpole", strategy=strategy, steps=6000, out=tmp_path / "run", **SMALL)
    killed = 0
    for _ in run:
        table = json.loads((run.path / "status.json").read_text())["workers"]
        learners = [row["pid"] for row in table if row["role"] == "learner" and row["pid"]]
        if not killed and learners and run.workers.updates > 50:
            killed = learners[-1]
            os.kill(killed, signal.SIGKILL)
    assert killed
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["faults"]["restarts"] == 1
    assert (summary["actors"], summary["learners"], summary["workers"]) == (1, 2, 2)
    assert 6000 <= summary["agent_steps"] < 6010  # real steps alone
    assert summary["imagined_steps"] > 1000
    assert 0 <= summary["model"]["held_out_error"] < 1
    assert 0 <= summary["model"]["gate_rate"] <= 1


def test_states_can_be_drawn_by_their_errors(tmp_path: Path) -> None:
    """Prioritized sweeping: imagined errors count for the states that they start from."""
    options = {**SMALL, "memory": {"capacity": 2000, "kind": "prioritized"}}
    run = mh.train("cartpole", backend="inprocess", steps=600, out=tmp_path / "run", **options)
    assert run.summary["imagined_steps"] > 20
