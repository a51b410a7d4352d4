"""What twelve recipes learn, to the bit: a change that is not meant to change results keeps them.

Processors of other kinds round differently, so hashes are kept by kind, in frozen_weights.json.
Without the compiled library, which every compiler may make a little different.
On a kind that is not there yet nothing is compared: the test is skipped, says so, and warns on CI.
``make freeze`` adds this machine's kind. Do it at a commit whose hashes hold on a known kind.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.maths import compiled, products

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
    kind = f"{platform.machine()} {vendor} {capability}, torch {torch.__version__}"
    return f"{kind}, numpy {np.__version__} {products.numpy_kernel()}"


@contextmanager
def without_library() -> Iterator[None]:
    with mock.patch.dict(os.environ, {compiled.SWITCH: "0"}):
        compiled.found.cache_clear()
        yield
    compiled.found.cache_clear()


@without_library()
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


@pytest.fixture(scope="module")
def hashes(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of this kind of machine; without them the tests are skipped."""
    known: dict[str, dict[str, str]] = json.loads(KEPT.read_text())
    if machine() in known:
        return known[machine()]
    why = f"NOT COMPARED: {KEPT.name} has no hashes of {machine()}; `make freeze` adds them"
    if os.environ.get("CI"):  # GitHub shows this line beside the result
        capture: Any = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n::warning title=frozen weights::{why}", flush=True)
    pytest.skip(why)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_learns_the_same_weights(
    recipe: str, hashes: dict[str, str], tmp_path: Path
) -> None:
    assert hash_of(recipe, tmp_path) == hashes[recipe]


def test_an_unknown_kind_of_machine_is_told(tmp_path: Path) -> None:
    """Skipped with the reason, and a warning on CI."""
    (tmp_path / Path(__file__).name).write_text(Path(__file__).read_text())
    (tmp_path / KEPT.name).write_text("{}")
    run = [sys.executable, "-m", "pytest", "-rs", "-k", "learns", Path(__file__).name]
    done = subprocess.run(
        run, cwd=tmp_path, env={**os.environ, "CI": "1"}, capture_output=True, text=True
    )
    assert done.stdout.count("::warning title=frozen weights::NOT COMPARED") == 1
    assert f"SKIPPED [{len(RECIPES)}]" in done.stdout
    assert "make freeze" in done.stdout


if __name__ == "__main__":
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory() as made:
        kept[machine()] = {recipe: hash_of(recipe, Path(made)) for recipe in RECIPES}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{KEPT.name} has the hashes of {machine()}: commit it")
