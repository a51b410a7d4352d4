"""Tabular Q-learning: exactly the textbook's, and optimal where value iteration says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.algorithms import tabular
from manyhands.types import BadRequest, Batch, EnvSpec
from support import true_models
from support.gradients import backward

QUIET: dict[str, Any] = {"evaluation": {"period_steps": 0}, "threads": 1, "quiet": True}
SPEC = EnvSpec("numbers", 1, (1,), "int32", 1, 2, counts=(3,))


def table_of(run: mh.Run) -> np.ndarray:
    (table,) = run.worker.model.named().values()
    return np.asarray(table)


def recorded(run: mh.Run) -> list[tuple[int, int, float, float, int]]:
    """State, action, reward, discount and next state of every step, in order."""
    lanes: Any = run.worker.memory
    flat, last = lanes.lanes.flat, int(lanes.lanes.written[0])
    rows = range(last - 1 + (flat["action"][last - 1] >= 0))
    return [
        (
            int(flat["frame"][row, 0]), int(flat["action"][row]), float(flat["reward"][row]),
            float(flat["discount"][row]), int(flat["frame"][row + 1, 0]),
        )
        for row in rows
        if flat["action"][row] >= 0
    ]  # fmt: skip


def reference(steps: list[tuple[int, int, float, float, int]], alpha: float) -> np.ndarray:
    """Q-learning in a few lines (Sutton and Barto 2018, section 6.5)."""
    q = np.zeros((48, 4), np.float32)
    for s, a, r, discount, s_next in steps:
        q[s, a] += alpha * (r + 0.95 * discount * q[s_next].max() - q[s, a])
    return q


def test_it_is_q_learning(tmp_path: Path) -> None:
    options = {"lr": 0.3, "gamma": 0.95}
    run = mh.train("cliffwalking", steps=2000, out=tmp_path / "run", tabular=options, **QUIET)
    steps = recorded(run)
    assert len(steps) == run.summary["updates"] == 2000
    np.testing.assert_allclose(table_of(run), reference(steps, 0.3), atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "share"),  # of the steps that Q-learning needs
    [("q-learning", 1.0), ("tabular-dyna-q", 0.25), ("prioritized-sweeping", 0.25)],
)
@pytest.mark.parametrize(
    ("task", "most", "arguments"),
    [
        ("cliffwalking", 8_000, {}),
        ("FrozenLake-v1", 6_000, {"is_slippery": False}),
        ("maze", 6_000, {}),
    ],
)
def test_the_greedy_policy_is_optimal(
    task: str, most: int, arguments: dict[str, Any], recipe: str, share: float, tmp_path: Path
) -> None:
    steps = int(share * most)
    env = {"kwargs": arguments} if arguments else {}
    options = {"lr": 0.5, "gamma": 0.95, "epsilon_end": 0.2}
    run = mh.train(
        task, recipe=recipe, steps=steps, out=tmp_path / "run", env=env, tabular=options, **QUIET
    )
    id = run.plan.env.id
    model = true_models.of_maze() if task == "maze" else true_models.of_gym(id, **arguments)
    assert true_models.is_optimal(model, table_of(run), 0.95)


def test_taxis_take_the_shortest_way(tmp_path: Path) -> None:
    """From every start: 300 of them. Many environments at once, to be quick."""
    options = {"lr": 0.9, "batch_size": 32, "epsilon_end": 0.5, "gamma": 0.9}
    run = mh.train(
        "taxi", steps=200_000, envs_per_worker=32, out=tmp_path / "run", tabular=options, **QUIET
    )
    model = true_models.of_gym("Taxi-v4")
    assert len(model.starts) == 300
    assert true_models.is_optimal(model, table_of(run), 0.9)


def batch(pairs: list[tuple[int, int]], rewards: list[float]) -> Batch:
    size = len(pairs)
    return Batch(
        observation=torch.tensor([[s] for s, _ in pairs], dtype=torch.int32),
        action=torch.tensor([a for _, a in pairs]),
        reward=torch.tensor(rewards),
        discount=torch.zeros(size),
        next_observation=torch.zeros((size, 1), dtype=torch.int32),
        weight=torch.ones(size),
        rows=np.arange(size),
    )


def test_pairs_of_a_batch_move_by_their_mean_error() -> None:
    made = tabular.make(tabular.Config(), spec=SPEC, torso=torch.nn.Identity)
    (losses,) = made.losses(batch([(0, 0), (0, 0), (2, 1)], [1.0, 3.0, 5.0]))
    backward(losses)
    gradient = made.table.values.grad
    assert gradient is not None
    assert gradient.tolist() == [[-2.0, 0.0], [0.0, 0.0], [0.0, -5.0]]
    assert losses.priorities.tolist() == [1.0, 3.0, 5.0]


def test_equal_values_are_chosen_at_random() -> None:
    made = tabular.make(tabular.Config(), spec=SPEC, torso=torch.nn.Identity)
    seen, greedy = np.zeros((1, 1), np.int32), np.zeros(1, np.float32)
    rng = np.random.default_rng(1)
    assert {int(made.act(seen, greedy, rng)[0][0]) for _ in range(30)} == {0, 1}
    with torch.no_grad():
        made.table.values[0, 1] = -1.0
    assert {int(made.act(seen, greedy, rng)[0][0]) for _ in range(30)} == {0}


def test_tuples_of_numbers_have_their_own_rows(tmp_path: Path) -> None:
    run = mh.train("Blackjack-v1", recipe="q-learning", steps=500, out=tmp_path / "run", **QUIET)
    assert table_of(run).shape == (32 * 11 * 2, 2)
    assert np.count_nonzero(table_of(run)) > 50
    policy = mh.load(run.path)
    row = np.ravel_multi_index((14, 10, 1), (32, 11, 2))
    best = np.flatnonzero(table_of(run)[row] == table_of(run)[row].max())
    assert policy.act((14, 10, 1)) in best


@pytest.mark.parametrize(
    ("task", "says"), [("cartpole", "not discrete"), ("toy/identity", "not discrete")]
)
def test_other_observations_are_refused(task: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=says) as refused:
        mh.train(task, recipe="q-learning", steps=100, out=tmp_path / "run", **QUIET)
    assert "--recipe dqn" in refused.value.remedy


def test_a_table_too_large_is_refused() -> None:
    spec = EnvSpec("large", 1, (2,), "int32", 1, 4, counts=(10_000, 10_000))
    with pytest.raises(BadRequest, match="100,000,000 observations of large"):
        tabular.make(tabular.Config(), spec=spec, torso=torch.nn.Identity)


def test_networks_learn_from_whole_numbers_too(tmp_path: Path) -> None:
    small = {"warmup_steps": 200, "epsilon_decay_steps": 500, "lr": 3e-3, "gamma": 0.5}
    run = mh.train(
        "toy/numbers", steps=1500, network={"hidden": (32,)}, dqn=small, out=tmp_path / "run",
        **QUIET,
    )  # fmt: skip
    assert run.evaluate(episodes=10).mean >= 9.5
    frames = run.worker.memory.lanes.flat["frame"]  # type: ignore[attr-defined]
    assert (frames.dtype, frames.shape[1:]) == (np.int32, (1,))
