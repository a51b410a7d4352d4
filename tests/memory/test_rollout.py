"""The rollout memory against the toy world's own record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.memory import Config, capacity_of, kind_of
from manyhands.memory.rollout import Rollout
from manyhands.types import BadRequest, Demand, RolloutDemand
from support.reference_world import COLUMNS, World
from support.rollouts import fill, learn, outside


def memory_of(world: World, demand: RolloutDemand, seed: int = 0) -> Rollout:
    rng = np.random.default_rng(seed)
    return Rollout(world.spec, Config(), demand=demand, columns=COLUMNS, rng=rng)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_targets_see_what_the_world_showed(seed: int, steps: int, lanes: int, stack: int) -> None:
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


def test_every_epoch_deals_every_step_once_in_a_new_order() -> None:
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


def test_columns_of_targets_stay_with_their_rows() -> None:
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


def test_batches_are_due_only_when_the_rollout_is_full() -> None:
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


def test_a_restored_rollout_continues_in_the_middle() -> None:
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


def test_without_its_rows_a_rollout_begins_again() -> None:
    world, demand = World(1, 2), RolloutDemand(4, 1, 1, 0.9)
    memory, rng = memory_of(world, demand), np.random.default_rng(0)
    fill(world, memory, 3, rng)
    state = memory.state()
    again = memory_of(World(1, 2), demand)
    again.restore({name: value for name, value in state.items() if name != "lanes"})
    assert again.filled == 0
    fill(world, again, 4, rng)
    assert len(learn(again, demand)[1]) == 1


def test_the_demand_chooses_the_memory() -> None:
    rollout, replay = RolloutDemand(4, 1, 1, 0.9), Demand(32, 4, 0, 1, 0.9)
    assert kind_of(Config(), rollout) == "rollout"
    assert kind_of(Config(), replay) == "replay"
    assert kind_of(Config(kind="prioritized"), replay) == "prioritized"
    with pytest.raises(BadRequest, match="replay does not fit") as refusal:
        kind_of(Config(kind="replay"), rollout)
    assert "rollout" in refusal.value.remedy
    spec = World(3, 2).spec
    assert capacity_of(Config(capacity=77), replay, spec) == 77
    assert capacity_of(Config(capacity=77), rollout, spec) < 300


def test_a_step_with_unknown_outcome_is_not_learned_from() -> None:
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
