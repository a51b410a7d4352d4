"""Every algorithm trains with every strategy: the pairs that a flag can ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands import cli
from manyhands.config import registry

SMALL = "--envs-per-worker 2 --network.hidden 32 --threads 1 --backend inprocess --quiet"
RECIPES = {  # of each algorithm, with enough steps for a first update, and few
    "dqn": "dqn --steps 300 --dqn.warmup-steps 100 --dqn.batch-size 8 --memory.capacity 1000",
    "double_q": "double-q --steps 300 --double-q.warmup-steps 100 --double-q.batch-size 8",
    "dyna_q": "dyna-q --steps 300 --dyna-q.warmup-steps 100 --dyna-q.model-hidden 8",
    "a2c": "paac --steps 100",
    "impala": "impala --steps 400",
    "ppo": "ppo --steps 200 --ppo.minibatches 2 --ppo.epochs 2",
    "pqn": "pqn --steps 200 --pqn.minibatches 2 --pqn.epochs 2",
    "tabular": "tabular-dyna-q --steps 100",
}
APART = {
    "apex": RECIPES["dqn"].replace("dqn ", "apex ", 1),
    "impala": RECIPES["impala"],
    "tabular-dyna-q": RECIPES["tabular"] + " --actors 2",
    "prioritized-sweeping": "prioritized-sweeping --steps 100 --actors 2",
}
TASKS = {"tabular-dyna-q": "maze", "prioritized-sweeping": "cliffwalking"}  # whole numbers


def test_no_algorithm_is_left_out() -> None:
    assert set(RECIPES) == set(registry.names("algorithms"))


@pytest.mark.parametrize("strategy", registry.names("strategies"))
@pytest.mark.parametrize("algorithm", [name for name in RECIPES if name != "impala"])
def test_two_workers_train(algorithm: str, strategy: str, tmp_path: Path) -> None:
    workers = "2" if strategy in registry.shared() else "1"
    summary = trained(f"{RECIPES[algorithm]} --workers {workers}", strategy, tmp_path)
    assert (summary["algorithm"], summary["strategy"]) == (algorithm, strategy)


@pytest.mark.parametrize("strategy", registry.names("strategies"))
@pytest.mark.parametrize("recipe", APART)
def test_actors_apart_from_learners_train(recipe: str, strategy: str, tmp_path: Path) -> None:
    learners = "2" if strategy in registry.shared() else "1"
    if recipe == "prioritized-sweeping" and strategy in ("allreduce", "proximal"):
        learners = "1"  # more are refused: one with an empty queue would stall the others
    summary = trained(f"{APART[recipe]} --learners {learners}", strategy, tmp_path)
    assert (summary["actors"], summary["strategy"]) == (2, strategy)


def trained(words: str, strategy: str, folder: Path) -> dict[str, object]:
    command = f"--recipe {words} --strategy {strategy} {SMALL} --out {folder / 'run'}"
    task = TASKS.get(words.split()[0], "cartpole")
    assert cli.main(["train", task, *command.split()]) == 0
    summary: dict[str, object] = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["updates"]
    return summary
