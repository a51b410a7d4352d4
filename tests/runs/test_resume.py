"""Training 2N equals N, resume, N: bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import manyhands as mh
from manyhands.roles import counters
from manyhands.runs import checkpoint

SMALL_ATARI: dict[str, Any] = {
    "recipe": "dqn",
    "env": {"sticky": 0.25, "max_frames": 600},  # episodes that end within the test
    "memory": {"capacity": 600},  # which wraps
    "dqn": {"warmup_steps": 200, "epsilon_decay_steps": 400, "target_period_updates": 20},
    "envs_per_worker": 4,
}
CASES: dict[str, dict[str, Any]] = {
    "cartpole": {
        "dqn": {"warmup_steps": 200},
        "memory": {"capacity": 700},
        "envs_per_worker": 1,
    },
    "lunarlander": {"dqn": {"warmup_steps": 200, "batch_size": 32}, "memory": {"capacity": 700}},
    "breakout": SMALL_ATARI,
    "snake": {
        "env": {"board": 5},
        "dqn": {"warmup_steps": 200},
        "memory": {"capacity": 700},
        "envs_per_worker": 4,
    },
    "toy/frames": {"dqn": {"warmup_steps": 100, "n_step": 3}, "memory": {"capacity": 300}},
}
FEW: dict[str, Any] = {"envs_per_worker": 4}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "prioritized-dqn": (
        "toy/frames",
        {"dqn": {"warmup_steps": 100, "n_step": 3}, "memory": {"capacity": 300}},
    ),
    "dueling-dqn": ("cartpole", CASES["cartpole"]),
    "double-q": (
        "cartpole",
        {"double_q": {"warmup_steps": 199, "target_period_updates": 77}},
    ),
    "dyna-q": (
        "cartpole",
        {"dyna_q": {"warmup_steps": 200, "steps_per_update": 2, "model_hidden": (16,)}},
    ),
    "paac": ("cartpole", {"a2c": {"rollout_steps": 7, "shared": False}, **FEW}),
    "ppo": (
        "toy/frames",
        {"ppo": {"rollout_steps": 32, "epochs": 2}, **FEW, "network": {"hidden": (16,)}},
    ),
    "impala": (
        "toy/frames",
        {
            "impala": {"rollout_steps": 7, "batch_rollouts": 3},
            **FEW,
            "network": {"hidden": (16,)},
            "actors": 0,  # one worker that does both
        },
    ),
    "pqn": ("breakout", {"env": SMALL_ATARI["env"], "pqn": {"rollout_steps": 9}, **FEW}),
    "tabular-dyna-q": (
        "FrozenLake-v1",
        {"tabular": {"batch_size": 3}, "memory": {"capacity": 200}, "envs_per_worker": 2},
    ),
    "prioritized-sweeping": ("cliffwalking", {"memory": {"capacity": 200}, "envs_per_worker": 2}),
}


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {k: v for name in tree for k, v in leaves(tree[name], f"{path}/{name}").items()}
    return {path: tree}


def everything(run: mh.Run) -> dict[str, Any]:
    """All that a checkpoint holds, but for what the clock wrote."""
    found = checkpoint.newest(run.path / "checkpoints")
    assert found.replay is not None
    timed = {"wall_s", "rated", "peak_pss_mb", "solved"}
    state = {k: v for k, v in found.state.items() if k not in ("elapsed_s", "split_before")}
    state["run"] = {k: v for k, v in found.state["run"].items() if k not in timed}
    shown = [counters.FILLED, *range(*counters.SPENT.indices(len(counters.FIELDS)))]
    state["counters"] = np.delete(state["counters"], shown, axis=1)
    return leaves({"weights": found.weights, "state": state, "replay": found.replay})


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        if isinstance(one[name], np.ndarray):
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
        else:
            assert one[name] == other[name], name


@pytest.mark.parametrize("task", CASES)
def test_two_halves_equal_the_whole(task: str, tmp_path: Path) -> None:
    compare_halves_with_whole(task, tmp_path, **CASES[task])


@pytest.mark.parametrize("recipe", RECIPES)
def test_they_do_by_every_recipe_with_a_state_of_its_own(recipe: str, tmp_path: Path) -> None:
    task, options = RECIPES[recipe]
    compare_halves_with_whole(task, tmp_path, recipe=recipe, **options)


@pytest.mark.usefixtures("bfloat16")
def test_they_do_in_bfloat16(tmp_path: Path) -> None:
    """Said outright: `auto` would be float32 on many a machine."""
    options = {**RECIPES["pqn"][1], "network": {"precision": "bfloat16"}}
    compare_halves_with_whole("breakout", tmp_path, recipe="pqn", **options)


def compare_halves_with_whole(task: str, tmp_path: Path, **options: Any) -> None:
    options = {"threads": 1, "quiet": True, **options}
    whole = mh.train(task, steps=1200, out=tmp_path / "whole", **options)
    half = mh.train(task, steps=600, out=tmp_path / "half", **options)
    middle = everything(half)
    rest = mh.resume(half.path, steps=1200, quiet=True)
    assert rest.worker.learner.updates == whole.worker.learner.updates > 0
    assert whole.worker.actor.scores.count > 1
    assert_same(everything(rest), everything(whole))
    weights = [name for name in middle if name.startswith("/weights")]
    assert any((middle[name] != everything(rest)[name]).any() for name in weights)


def test_the_weight_files_are_equal_byte_for_byte(tmp_path: Path) -> None:
    options = {"threads": 1, "quiet": True, **CASES["cartpole"], "steps": 400}
    files = []
    for name in ("one", "two"):
        run = mh.train("cartpole", out=tmp_path / name, **options)
        files.append((run.path / "checkpoints" / "400" / "weights.safetensors").read_bytes())
    assert files[0] == files[1]
    other = mh.train("cartpole", out=tmp_path / "three", seed=2, **options)
    assert (other.path / "checkpoints/400/weights.safetensors").read_bytes() != files[0]


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    options = {"threads": 1, "quiet": True, "steps": 600, **CASES["cartpole"]}
    plain = mh.train("cartpole", out=tmp_path / "plain", evaluation={"period_steps": 0}, **options)
    often = {"period_steps": 100, "episodes": 2}
    looked = mh.train("cartpole", out=tmp_path / "looked", evaluation=often, **options)
    assert (looked.path / "best" / "manifest.json").is_file()
    assert_same(leaves(plain.worker.model.named()), leaves(looked.worker.model.named()))


def test_a_checkpoint_without_replay_fills_its_memory_again(tmp_path: Path) -> None:
    options = {**CASES["cartpole"], "checkpoint": {"replay": False}, "quiet": True}
    run = mh.train("cartpole", steps=500, out=tmp_path / "run", **options)
    before = run.worker.learner.updates
    more = mh.resume(run.path, steps=1000, quiet=True)
    assert more.worker.learner.updates > before
    memory: Any = more.worker.memory
    assert memory.filled <= 560
    assert any("no replay" in note for note in more.progress.notes)


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    run = mh.train("cartpole", steps=300, out=tmp_path / "run", quiet=True, **CASES["cartpole"])
    with pytest.raises(mh.BadRequest, match="is at 300 agent steps: it has finished"):
        mh.resume(run.path, quiet=True)


def test_a_corrupt_newest_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    run = mh.train("cartpole", steps=300, out=tmp_path / "run", quiet=True, **CASES["cartpole"])
    mh.resume(run.path, steps=600, quiet=True)
    newest = run.path / "checkpoints" / "600" / "weights.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    again = mh.resume(run.path, steps=700, quiet=True)
    assert again.worker.actor.agent_steps == 700
    assert "600" in (run.path / "faults.jsonl").read_text()


def test_fewer_steps_than_were_taken_are_refused_as_such(tmp_path: Path) -> None:
    run = mh.train("cartpole", steps=300, out=tmp_path / "run", quiet=True, **CASES["cartpole"])
    with pytest.raises(mh.BadRequest, match="is at 300 agent steps: already past 100"):
        mh.resume(run.path, steps=100)
    with pytest.raises(mh.BadRequest, match="is at 300 agent steps: it has finished"):
        mh.resume(run.path, steps=300)
