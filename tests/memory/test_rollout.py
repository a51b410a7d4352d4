"""The rollout memory against the toy world's own record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_world import COLUMNS, World

from manyhands.memory import Config, capacity_of, kind_of
from manyhands.memory.rollout import Rollout
from manyhands.types import BadRequest, Batch, Demand, RolloutDemand

EVENTS = ["go", "go", "go", "life", "terminate", "truncate"]


def memory_of(world: World, demand: RolloutDemand, seed: int = 0) -> Rollout:
    rng = np.random.default_rng(seed)
    return Rollout(world.spec, Config(), demand=demand, columns=COLUMNS, rng=rng)


def fill(world: World, memory: Any, steps: int, rng: np.random.Generator) -> list[list[dict]]:
    """Plays and notes of every step and lane what the world showed before and after it."""
    noted = []
    for _ in range(steps):
        before = [np.stack(lane.seen) for lane in world.lanes]
        rows = world.step(rng.choice(EVENTS, world.spec.lanes))
        memory.extend(rows)
        last = iter(rows.last_frame)
        noted.append(
            [
                {
                    "observation": before[i],
                    "action": int(rows.action[i]),
                    "reward": float(rows.reward[i]),
                    "discount": float(rows.discount[i]),
                    "ended": bool(rows.ended[i]),
                    "after": after_of(before[i], lane, rows.ended[i], last),
                }
                for i, lane in enumerate(world.lanes)
            ]
        )
    return noted


def after_of(before: np.ndarray, lane: Any, ended: bool, last: Iterator) -> np.ndarray:
    if ended:
        return np.concatenate([before[1:], next(last)[None]])
    return np.stack(lane.seen)


def learn(memory: Any, demand: Any) -> tuple[list[Any], list[Batch]]:
    """What `targets` saw, and the batches: copies, with a column that counts the steps."""
    seen: list[Any] = []

    def targets(rollout: Any) -> Any:
        seen.append(rollout)
        count = torch.arange(rollout.reward.numel()).view(rollout.reward.shape)
        return replace(rollout, columns={**rollout.columns, "count": count})

    batches = [
        replace(batch, observation=batch.observation.clone())
        for batch in memory.due(demand, targets)
    ]
    return seen, batches


def outside(noted: list[list[dict]]) -> set[tuple[int, int]]:
    """The steps that bootstrap from what is not in the rollout; one, if there is none."""
    last = len(noted) - 1
    found = {
        (t, lane)
        for t, lanes in enumerate(noted)
        for lane, step in enumerate(lanes)
        if (step["ended"] or t == last) and step["discount"] > 0
    }
    return found or {(last, 0)}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_targets_see_what_the_world_showed(seed, steps, lanes, stack):
    world, rng = World(lanes, stack), np.random.default_rng(seed)
    demand = RolloutDemand(steps, 1, 1, 0.9)
    memory = memory_of(world, demand)
    for _ in range(4):  # so that the rings wrap
        noted = fill(world, memory, steps, rng)
        (rollout,), (batch,) = learn(memory, demand)
        shape = world.spec.observation_shape
        bootstraps = dict(zip(rollout.after_at.tolist(), rollout.after, strict=True))
        for t, lane in np.ndindex(steps, lanes):
            step, at = noted[t][lane], t * lanes + lane
            assert int(rollout.action[t, lane]) == step["action"]
            assert float(rollout.reward[t, lane]) == step["reward"]
            assert float(rollout.discount[t, lane]) == pytest.approx(0.9 * step["discount"])
            assert bool(rollout.ended[t, lane]) == step["ended"]
            observation = step["observation"].reshape(shape)
            np.testing.assert_array_equal(batch.observation[at], observation)
            assert float(batch.columns["value"][at]) == step["observation"][-1][0] / 2
            assert (at in bootstraps) == ((t, lane) in outside(noted))
            if at in bootstraps:
                np.testing.assert_array_equal(bootstraps[at], step["after"].reshape(shape))


def test_every_epoch_deals_every_step_once_and_anew():
    world, demand = World(3, 2), RolloutDemand(7, 3, 4, 0.9)
    memory = memory_of(world, demand)
    fill(world, memory, 7, np.random.default_rng(0))
    seen, batches = learn(memory, demand)
    assert len(seen) == 1
    assert [len(batch.rows) for batch in batches] == [6, 5, 5, 5] * 3
    epochs = [
        np.concatenate([b.columns["count"].numpy() for b in batches[i : i + 4]])
        for i in range(0, 12, 4)
    ]
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all((batch.weight == 1).all() for batch in batches)


def test_columns_of_targets_stay_with_their_rows():
    world, demand = World(2, 1), RolloutDemand(6, 1, 3, 0.9)
    memory = memory_of(world, demand)
    noted = fill(world, memory, 6, np.random.default_rng(1))
    _, batches = learn(memory, demand)
    for batch in batches:
        for i, at in enumerate(batch.columns["count"].tolist()):
            step = noted[at // 2][at % 2]
            np.testing.assert_array_equal(batch.observation[i], step["observation"].reshape(-1))
            assert (int(batch.action[i]), float(batch.reward[i])) == (
                step["action"],
                step["reward"],
            )


def test_nothing_is_due_before_the_rollout_is_full_and_nothing_after():
    world, demand = World(2, 1), RolloutDemand(5, 1, 1, 0.9)
    memory = memory_of(world, demand)
    rng = np.random.default_rng(0)
    for _ in range(3):
        fill(world, memory, 4, rng)
        assert learn(memory, demand) == ([], [])
        assert memory.filled == 8
        fill(world, memory, 1, rng)
        assert len(learn(memory, demand)[1]) == 1
        assert memory.filled == 0


def test_a_restored_rollout_goes_on_in_the_middle():
    world, demand = World(2, 3), RolloutDemand(6, 2, 2, 0.9)
    memory, rng = memory_of(world, demand, seed=1), np.random.default_rng(0)
    fill(world, memory, 6, rng)
    learn(memory, demand)
    fill(world, memory, 4, rng)
    state = memory.state()
    again = memory_of(World(2, 3), demand, seed=2)
    again.restore(state)
    for _ in range(2):
        rows = world.step(["go", "truncate"])
        memory.extend(rows)
        again.extend(rows)
    for mine, theirs in zip(learn(memory, demand)[1], learn(again, demand)[1], strict=True):
        assert torch.equal(mine.observation, theirs.observation)
        assert torch.equal(mine.columns["count"], theirs.columns["count"])


def test_without_its_rows_a_rollout_begins_anew():
    world, demand = World(1, 2), RolloutDemand(4, 1, 1, 0.9)
    memory, rng = memory_of(world, demand), np.random.default_rng(0)
    fill(world, memory, 3, rng)
    state = memory.state()
    again = memory_of(World(1, 2), demand)
    again.restore({name: value for name, value in state.items() if name != "lanes"})
    assert again.filled == 0
    fill(world, again, 4, rng)
    assert len(learn(again, demand)[1]) == 1


def test_the_demand_chooses_the_memory():
    rollout, replay = RolloutDemand(4, 1, 1, 0.9), Demand(32, 4, 0, 1, 0.9)
    assert kind_of(Config(), rollout) == "rollout"
    assert kind_of(Config(), replay) == "replay"
    assert kind_of(Config(kind="prioritized"), replay) == "prioritized"
    with pytest.raises(BadRequest, match="replay does not serve") as refusal:
        kind_of(Config(kind="replay"), rollout)
    assert "rollout" in refusal.value.remedy
    spec = World(3, 2).spec
    assert capacity_of(Config(capacity=77), replay, spec) == 77
    assert capacity_of(Config(capacity=77), rollout, spec) < 300


def test_a_step_of_which_nothing_is_known_is_cut_off_and_not_learned_from() -> None:
    world, demand = World(2, 1), RolloutDemand(4, 1, 1, 0.5)
    memory = memory_of(world, demand)
    shown = []
    for step in range(4):
        rows = world.step(["go", "go"])
        broken = np.array([False, step == 1])
        memory.extend(rows._replace(broken=broken))
        shown.append(rows.frame)
    ((seen,), (batch,)) = learn(memory, demand)
    assert seen.ended.tolist() == [[False, False], [False, True], [False, False], [False, False]]
    assert seen.after_at.tolist() == [3, 6, 7]
    assert (seen.after[0].numpy()[-1] == shown[1][1]).all(), "its own row follows it"
    assert batch.weight.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
