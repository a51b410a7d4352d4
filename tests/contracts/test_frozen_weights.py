"""What twelve recipes learn, to the bit: a change that is not meant to change results keeps them.

Processors of other kinds round differently, so hashes are kept by kind. On a kind that is not there
yet the test is skipped; ``python tests/contracts/test_frozen_weights.py`` adds it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import manyhands as mh

KEPT = Path(__file__).with_name("frozen_weights.json")
STEPS = 600
Q_LEARNING: dict[str, Any] = {"warmup_steps": 100, "steps_per_update": 4, "batch_size": 32}
ROLLOUTS: dict[str, Any] = {"rollout_steps": 8}
RECIPES: dict[str, dict[str, Any]] = {
    "dqn": {"dqn": Q_LEARNING},
    "double-q": {"double_q": Q_LEARNING},
    "prioritized-dqn": {"dqn": Q_LEARNING},
    "apex": {"dqn": Q_LEARNING, "actors": 2},
    "hogwild": {"dqn": Q_LEARNING, "workers": 2},
    "downpour": {"dqn": Q_LEARNING, "workers": 2},
    "sync": {"dqn": Q_LEARNING, "workers": 2},
    "ad-psgd": {"dqn": Q_LEARNING, "workers": 2},
    "a3c": {"a2c": ROLLOUTS, "workers": 2},
    "ppo": {"ppo": {**ROLLOUTS, "minibatches": 2}},
    "pqn": {"pqn": {**ROLLOUTS, "minibatches": 2}},
    "impala": {"impala": ROLLOUTS, "actors": 2},
}


def machine() -> str:
    """What decides how numbers are rounded."""
    vendor = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        vendor = next((x.split(":")[1].strip() for x in lines if x.startswith("vendor_id")), "")
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {vendor} {capability}, torch {torch.__version__}"


def hash_of(recipe: str, folder: Path) -> str:
    options: dict[str, Any] = dict(RECIPES[recipe])
    run = mh.train(
        "cartpole",
        recipe=recipe,
        backend="inprocess",
        threads=1,
        steps=STEPS,
        out=folder / recipe,
        quiet=True,
        network={"hidden": (32, 32)},
        evaluation={"period_steps": 0},
        checkpoint={"replay": False},
        **options,
    )
    (newest,) = (run.path / "checkpoints").iterdir()
    return hashlib.sha256((newest / "weights.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_learns_the_same_weights(recipe: str, tmp_path: Path) -> None:
    known = json.loads(KEPT.read_text())
    if machine() not in known:
        pytest.skip(f"no hashes of {machine()} yet: python {Path(__file__).name} adds them")
    assert hash_of(recipe, tmp_path) == known[machine()][recipe]


if __name__ == "__main__":
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory() as made:
        kept[machine()] = {recipe: hash_of(recipe, Path(made)) for recipe in RECIPES}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
