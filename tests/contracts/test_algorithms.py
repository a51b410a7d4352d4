"""What every algorithm can do: learn what a child would, and do it again the same way."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.config import registry

ALGORITHMS = registry.names("algorithms")
QUICK: dict[str, Any] = {
    "lr": 3e-3,
    "batch_size": 32,
    "steps_per_update": 1,
    "warmup_steps": 100,
    "target_period_updates": 50,
    "gamma": 0.5,
    "epsilon_decay_steps": 300,
    "rollout_steps": 8,
    "epochs": 4,
    "minibatches": 2,
}
TASKS = {"tabular": "toy/numbers"}  # a table needs discrete observations
ROLLOUTS_LEARN_FASTER = {"lr": 1e-2}  # of as many steps they make fewer updates


def train(algorithm: str, out: Path, **options: Any) -> mh.Run:
    """The canonical fields, where the algorithm has them."""
    known = {field.name for field in fields(registry.load("algorithms", algorithm).Config)}
    values = QUICK | (ROLLOUTS_LEARN_FASTER if "rollout_steps" in known else {})
    options |= {algorithm: {name: value for name, value in values.items() if name in known}}
    options |= {"memory": {"capacity": 2000}, "network": {"hidden": (32,)}, "threads": 1}
    evaluation = {"period_steps": 0}
    task = TASKS.get(algorithm, "toy/identity")
    return mh.train(
        task, algorithm=algorithm, out=out, quiet=True, evaluation=evaluation, **options
    )


def digest(run: mh.Run) -> str:
    arrays = sorted(run.worker.model.named().items())
    return hashlib.sha256(b"".join(array.tobytes() for _, array in arrays)).hexdigest()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_learns_which_action_pays(algorithm: str, tmp_path: Path) -> None:
    run = train(algorithm, tmp_path / "run", steps=3000)
    played = run.evaluate(episodes=30)
    assert len(played.scores) == 30
    assert played.mean >= 9.5  # of 10; at random 2.5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_seed_decides(algorithm: str, tmp_path: Path) -> None:
    one, two, other = (
        train(algorithm, tmp_path / str(i), steps=300, seed=seed)
        for i, seed in enumerate((3, 3, 4))
    )
    assert one.worker.learner.updates > 0
    assert digest(one) == digest(two)
    assert digest(one) != digest(other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learning_changes_the_weights(algorithm: str, tmp_path: Path) -> None:
    """Without which equal weights would say nothing."""
    short = train(algorithm, tmp_path / "short", steps=7)
    long = train(algorithm, tmp_path / "long", steps=300)
    assert short.worker.learner.updates == 0
    assert digest(short) != digest(long)
