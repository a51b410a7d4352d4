"""Planning memories: every step once, then outcomes; the newest of each pair, in any lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from manyhands.memory import Config, planning, sweeping
from manyhands.types import Batch, EnvSpec, PlanningDemand, Rows

ACTIONS = 3


def spec(lanes: int = 1) -> EnvSpec:
    return EnvSpec("walk", lanes, (1,), "int32", 1, ACTIONS, counts=(20,))


def demand(batch_size: int = 1, planning_steps: int = 0) -> PlanningDemand:
    return PlanningDemand(
        batch_size=batch_size,
        steps_per_update=batch_size / (1 + planning_steps),
        warmup_steps=0,
        n_step=1,
        gamma=0.5,
    )


class Walk:
    """Random walks that end at times or break, recorded in lanes and in a list."""

    def __init__(self, memory: Any, lanes: int, seed: int = 0) -> None:
        self.memory, self.rng = memory, np.random.default_rng(seed)
        self.at = self.rng.integers(20, size=lanes)
        self.first = np.ones(lanes, bool)
        self.newest: dict[tuple[int, int], tuple[float, float, int]] = {}  # the whole truth
        self.steps = list[tuple[int, int, float]]()

    def step(self) -> None:
        rng, lanes = self.rng, len(self.at)
        action = rng.integers(ACTIONS, size=lanes).astype(np.int32)
        reward = rng.random(lanes).astype(np.float32)
        to, ended = rng.integers(20, size=lanes), rng.random(lanes) < 0.2
        broken = (rng.random(lanes) < 0.1) & ~ended
        discount = np.where(ended & (rng.random(lanes) < 0.5), 0.0, 1.0).astype(np.float32)
        begun = np.where(ended | broken, rng.integers(20, size=lanes), to)
        for lane in np.flatnonzero(~broken):
            pair = int(self.at[lane]), int(action[lane])
            self.newest[pair] = float(reward[lane]), float(discount[lane]), int(to[lane])
            self.steps.append((*pair, float(reward[lane])))
        self.memory.extend(
            Rows(
                frame=self.at[:, None].astype(np.int32),
                action=action,
                reward=reward,
                discount=discount,
                first=self.first,
                ended=ended,
                last_frame=to[ended, None].astype(np.int32),
                next_frame=begun[:, None].astype(np.int32),
                columns={},
                broken=broken,
            )
        )
        self.first, self.at = ended | broken, begun


def made(kind: Any, lanes: int = 1, capacity: int = 5000) -> Any:
    config = Config(capacity=capacity, threshold=0.01)
    return kind.make(spec(lanes), config, columns={}, rng=np.random.default_rng(1))


def drawn(memory: Any, asked: PlanningDemand) -> list[tuple[int, int, float, float, int]]:
    """State, action, reward, discount and next state of every row that is due."""
    found = []
    for batch in memory.due(asked, lambda batch: batch):
        rows = zip(
            batch.observation[:, 0], batch.action, batch.reward, batch.discount,
            batch.next_observation[:, 0], strict=True,
        )  # fmt: skip
        found += [tuple(part.item() for part in row) for row in rows]
    return found


@pytest.mark.parametrize(("lanes", "batch_size"), [(1, 1), (3, 1), (20, 1), (3, 4), (1, 8)])
def test_every_step_is_drawn_once(lanes: int, batch_size: int) -> None:
    memory = made(planning, lanes)
    walk, found = Walk(memory, lanes), list[tuple[Any, ...]]()
    for _ in range(120):
        walk.step()
        found += drawn(memory, demand(batch_size))
    known = dict.fromkeys(walk.steps)
    learned = [row[:3] for row in found if row[:3] in known]
    assert len(found) == len(learned)  # broken steps leave room for a remembered one
    missing = set(walk.steps) - {*learned}
    assert len(missing) < lanes + batch_size  # the last ones wait


@pytest.mark.parametrize("lanes", [1, 3])
def test_planning_draws_the_newest_outcome_of_known_pairs(lanes: int) -> None:
    memory = made(planning, lanes)
    walk = Walk(memory, lanes)
    for _ in range(80):
        walk.step()
        for s, a, r, discount, to in drawn(memory, demand(planning_steps=4))[lanes:]:
            reward, went_on, after = walk.newest[s, a]
            assert (r, discount) == (reward, 0.5 * went_on)
            assert to == after
    pairs = memory.planning.outcomes.known()
    assert {(int(p) // ACTIONS, int(p) % ACTIONS) for p in pairs} == set(walk.newest)


@pytest.mark.parametrize("lanes", [1, 3])
def test_overwritten_pairs_are_forgotten(lanes: int) -> None:
    memory = made(planning, lanes, capacity=40 * lanes)
    walk = Walk(memory, lanes)
    for step in range(600):
        walk.step()
        for s, a, r, discount, to in drawn(memory, demand(planning_steps=3))[lanes:]:
            reward, went_on, after = walk.newest[s, a]
            assert (r, discount, to) == (reward, 0.5 * went_on, after), step
    assert 0 < len(memory.planning.outcomes.known()) < len(walk.newest)


@pytest.mark.parametrize("kind", [planning, sweeping])
def test_a_restored_memory_draws_as_the_old_one(kind: Any) -> None:
    old, new = made(kind, 2, 100), made(kind, 2, 100)
    table = Table()
    walk = Walk(old, 2)
    for _ in range(70):
        walk.step()
        table.learn(old, demand(4, planning_steps=3))
    new.lanes.restore(old.lanes.state())
    new.restore(old.state())
    again = Table(table.values.copy())
    for _ in range(30):
        walk.memory = Both(old, new)
        walk.step()
        assert table.learn(old, demand(4, planning_steps=3)) == again.learn(
            new, demand(4, planning_steps=3)
        )
    np.testing.assert_array_equal(table.values, again.values)


class Both:
    def __init__(self, *memories: Any) -> None:
        self.memories = memories

    def extend(self, rows: Rows) -> None:
        for memory in self.memories:
            memory.extend(rows)


class Table:
    """A slow learner: Q-learning with alpha 1, on batches."""

    def __init__(self, values: np.ndarray | None = None) -> None:
        self.values = np.zeros((20, ACTIONS)) if values is None else values

    def errors(self, batch: Batch) -> np.ndarray:
        now, then = batch.observation[:, 0].numpy(), batch.next_observation[:, 0].numpy()
        goal = batch.reward.numpy() + batch.discount.numpy() * self.values[then].max(1)
        return np.asarray(goal - self.values[now, batch.action.numpy()])

    def targets(self, batch: Batch) -> Batch:
        error = torch.from_numpy(np.abs(self.errors(batch)))
        return Batch(
            batch.observation, batch.action, batch.reward, batch.discount,
            batch.next_observation, batch.weight, batch.rows, {"error": error},
        )  # fmt: skip

    def learn(self, memory: Any, asked: PlanningDemand) -> list[list[int]]:
        """The rows of each batch."""
        rows = []
        for batch in memory.due(asked, self.targets):
            rows.append(batch.rows.tolist())
            error = self.errors(batch)
            self.values[batch.observation[:, 0].numpy(), batch.action.numpy()] += error
            memory.report(batch, torch.from_numpy(np.abs(error)))
        return rows


def sweep(chain: list[tuple[int, int, float, int]], updates: int) -> tuple[Any, Table]:
    """Records these steps, one a row, then makes so many updates."""
    memory, table = made(sweeping), Table()
    for n, (state, action, reward, to) in enumerate(chain):
        last, ended = n == len(chain) - 1, np.array([n == len(chain) - 1])
        memory.extend(
            Rows(
                frame=np.array([[state]], np.int32),
                action=np.array([action], np.int32),
                reward=np.array([reward], np.float32),
                discount=np.array([0.0 if last else 1.0], np.float32),
                first=np.array([n == 0]),
                ended=ended,
                last_frame=np.array([[to]] if last else np.zeros((0, 1)), np.int32),
                next_frame=np.array([[0 if last else to]], np.int32),
                columns={},
            )
        )
    asked = demand(planning_steps=updates // len(chain))
    table.learn(memory, asked)
    return memory, table


def test_a_surprise_spreads_backwards_in_one_sweep() -> None:
    """Ten steps, a reward at the end: each value is learned once, the last step's first."""
    chain = [(s, 0, float(s == 9), s + 1) for s in range(10)]
    memory, table = sweep(chain, 100)
    expected = 0.5 ** np.arange(9, -1, -1)
    np.testing.assert_allclose(table.values[:10, 0], expected * (expected > 0.01))
    assert memory.updates_drawn == 7  # the others' errors are below the threshold
    assert memory.updates_drawn + memory.updates_skipped >= 100


def test_the_largest_error_comes_first() -> None:
    memory, table = made(sweeping), Table()
    walk = Walk(memory, 1)
    for _ in range(60):
        walk.step()
    asked = demand(planning_steps=9)
    for n, batch in enumerate(memory.due(asked, table.targets)):
        sampler = memory.planning
        taken = abs(float(table.errors(batch)[0]))
        assert taken >= sampler.priorities.max() - 1e-6, n
        table.values[batch.observation[:, 0].numpy(), batch.action.numpy()] += table.errors(batch)
        memory.report(batch, torch.zeros(1))
    assert n > 50
