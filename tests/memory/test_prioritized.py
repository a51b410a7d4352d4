from __future__ import annotations

import json
import math
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import optim
from manyhands.algorithms import dqn
from manyhands.backends.inprocess import InProcess
from manyhands.memory import Config, prioritized
from manyhands.memory.prioritized import A_LITTLE, Prioritized
from manyhands.memory.replay import AT_ONCE, Replay
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles.learner import Learner
from manyhands.roles.stopwatch import Stopwatch
from manyhands.strategies.serial import Config as serial_config
from manyhands.strategies.serial import Serial
from support.gradients import WithGraph
from support.reference_world import COLUMNS, World
from support.replays import batches, lanes_in, play, shared_of, wants

EVENTS = st.sampled_from(["go", "go", "go", "life", "terminate", "truncate", "die"])


KINDS: dict[str, Any] = {"numpy": lambda: Prioritized, "numba": lambda: compiled()}
sampler: Any = Prioritized


def compiled() -> type[Prioritized]:
    pytest.importorskip("numba")
    assert prioritized.fastest() is not Prioritized
    return prioritized.fastest()


@pytest.fixture(params=KINDS, autouse=True, scope="module")
def _kind(request: pytest.FixtureRequest) -> None:
    """Every test here is of both kinds."""
    global sampler
    sampler = KINDS[request.param]()


def memory_of(
    world: World,
    capacity: int = 200,
    seed: int = 0,
    shared: SharedLanes | None = None,
    **values: Any,
) -> Any:
    config = Config(capacity=capacity, kind="prioritized", **values)
    rng, lanes = np.random.default_rng(seed), lanes_in(shared) if shared else None
    kind = partial(sampler, priorities=lanes.priorities if lanes else None)
    return Replay(world.spec, config, columns=COLUMNS, rng=rng, replay_lanes=lanes, sampler=kind)


@settings(deadline=None, max_examples=30)
@given(stack=st.integers(1, 3), n=st.integers(1, 4), seed=st.integers(0, 1000))
def test_compiled_it_draws_the_same_to_the_last_bit(stack: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world, demand = World(3, stack), wants(every=4, n=n)
    config = Config(capacity=int(rng.integers(100, 4000)), kind="prioritized")
    memories = [
        Replay(world.spec, config, columns=COLUMNS, rng=np.random.default_rng(seed), sampler=kind())
        for kind in KINDS.values()
    ]
    for _ in range(8):
        for _ in range(rng.integers(1, 60)):
            events = rng.choice(["go", "go", "go", "life", "terminate", "truncate", "die"], size=3)
            rows = world.step(events)
            for memory in memories:
                memory.extend(rows)
        left, right = (learn(memory, demand) for memory in memories)
        assert left == right
        np.testing.assert_array_equal(*map(priorities, memories))


def priorities(memory: Any) -> Any:
    memory.sampler.settle()
    return memory.sampler.tree.leaves[: memory.capacity]


# --- Which -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    lanes=st.integers(1, 3),
    stack=st.integers(1, 4),
    n=st.integers(1, 4),
    data=st.data(),
)
def test_only_rows_that_start_a_transition_have_a_priority(
    lanes: int, stack: int, n: int, data: st.DataObject
) -> None:
    """Whatever happens, however many steps lie between two draws, and after many laps."""
    world = World(lanes, stack)
    memory = memory_of(world, capacity=1)  # the shortest lanes there are
    demand = wants(batch_size=1, n=n, every=1e-9)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 60))):
            memory.extend(world.step([data.draw(EVENTS) for _ in range(lanes)]))
        for batch in islice(batches(memory, demand), 3):
            memory.report(batch, torch.from_numpy(rng.random(1)))
        memory.sampler.settle()
        memory.sampler._add_new_rows(demand)
        expected = world.expected(memory.lanes.rows, n, 0.9)
        rows = sorted(lane * memory.lanes.rows + s % memory.lanes.rows for lane, s in expected)
        assert np.flatnonzero(priorities(memory)).tolist() == rows
        assert sorted(memory.lanes.drawable(n).tolist()) == rows


def test_rows_enter_with_the_largest_priority_seen() -> None:
    world, demand = World(1, 1), wants(batch_size=4, every=0.1)
    memory = memory_of(world)
    play(world, memory, 10, ends=(0,))
    batch = next(batches(memory, demand))
    assert set(priorities(memory)[:9]) == {1.0}
    memory.report(batch, torch.tensor([0.5, 7.0, 0.1, 0.0]))
    play(world, memory, 1, ends=(0,))
    next(batches(memory, demand))
    assert priorities(memory)[9] == pytest.approx((7 + A_LITTLE) ** 0.6)
    assert memory.sampler.priorities.largest == priorities(memory)[9]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_error_that_is_no_number_sets_no_mark(bad: float) -> None:
    world = World(1, 1)
    memory = memory_of(world)
    play(world, memory, 10, ends=(0,))
    batch = next(batches(memory, wants(batch_size=2)))
    memory.report(batch, torch.tensor([bad, 3.0]))
    assert priorities(memory)[batch.rows[0]] == 1.0
    assert memory.sampler.priorities.largest == pytest.approx((3 + A_LITTLE) ** 0.6)
    assert math.isfinite(memory.sampler.tree.total)


def test_a_report_on_rows_that_are_gone_does_not_bring_them_back() -> None:
    world, demand = World(1, 1), wants(batch_size=8, every=0.1)
    memory = memory_of(world, capacity=1)
    play(world, memory, 10, ends=(0,))
    batch = next(batches(memory, demand))
    old = batch.rows.copy()
    play(world, memory, 33, ends=(0,))  # a lap: some of the rows are written again
    next(batches(memory, demand))
    batch.rows[:] = old
    before = np.flatnonzero(priorities(memory))
    memory.report(batch, torch.ones(8))
    assert np.flatnonzero(priorities(memory)).tolist() == before.tolist()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_are_drawn_in_proportion_to_their_errors(alpha: float) -> None:
    world = World(3, 2)
    memory = memory_of(world, capacity=120, alpha=alpha)
    play(world, memory, 100)
    demand = wants(batch_size=1, every=1e-4, n=3)
    drawable = memory.lanes.drawable(3)
    next(batches(memory, demand))
    errors = np.random.default_rng(0).random(len(drawable)) + 0.1
    memory.sampler.report(drawable, torch.from_numpy(errors))
    chance = (errors + A_LITTLE) ** alpha
    chance /= chance.sum()
    draws = 10_000  # of batches of one, which strata do not even out
    rows = np.array([b.rows[0] for b in islice(batches(memory, demand), draws)])
    counts = np.array([(rows == row).sum() for row in drawable])
    assert counts.sum() == draws
    chi_square, freedom = ((counts - draws * chance) ** 2 / (draws * chance)).sum(), len(counts) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


# --- Weights -----------------------------------------------------------------------------------


def test_weights_are_those_of_the_paper() -> None:
    world, demand = World(2, 1), wants(batch_size=16, every=0.01)
    memory = memory_of(world, alpha=0.7, beta=0.5, beta_steps=1000)
    play(world, memory, 50, ends=(0, 0))
    batch = next(batches(memory, demand))
    assert batch.weight.tolist() == [1.0] * 16  # all rows are equally likely as yet
    memory.report(batch, torch.linspace(0.1, 5, 16))
    draw = list(islice(batches(memory, demand), AT_ONCE))
    rows, weights = (
        np.concatenate([getattr(b, name) for b in draw]) for name in ("rows", "weight")
    )
    leaves = priorities(memory)
    chance = leaves[rows] / leaves.sum()
    beta = 0.5 + 0.5 * 100 / 1000
    weight = (1 / (np.count_nonzero(leaves) * chance)) ** beta
    assert len(set(weight)) > 3
    np.testing.assert_allclose(weights, weight / weight.max(), rtol=1e-5)
    assert weights.max() == 1


def test_rows_drawn_in_place_of_others_weigh_by_the_same_measure() -> None:
    world, demand = World(2, 1), wants(batch_size=16, every=0.01)
    memory = memory_of(world, alpha=1.0, beta=1.0, beta_steps=0)
    play(world, memory, 50, ends=(0, 0))
    batch = next(batches(memory, demand))
    memory.report(batch, torch.linspace(2, 5, 16))
    first = memory.sampler.sample(demand, 64, 100)
    leaves = priorities(memory)
    least = leaves[first.rows].min()
    lanes = set[int]()
    for _ in range(20):
        some = memory.sampler.sample(demand, 2, 100, again=True)
        lanes |= set((some.rows // memory.lanes.rows).tolist())
        np.testing.assert_allclose(some.weight, np.minimum(least / leaves[some.rows], 1), rtol=1e-5)
    assert lanes == {0, 1}, "from all of them"


def test_every_batch_of_a_draw_has_a_row_of_every_stratum() -> None:
    world, demand = World(1, 1), wants(batch_size=4, every=0.01)
    memory = memory_of(world)
    play(world, memory, 41, ends=(0,))
    for batch in islice(batches(memory, demand), AT_ONCE):
        assert (batch.rows // 10).tolist() == [0, 1, 2, 3]


def test_beta_rises_in_agent_steps() -> None:
    rising = memory_of(World(1, 1), beta=0.4, beta_steps=100).sampler
    assert [rising.beta(t) for t in (0, 50, 100, 10**9)] == pytest.approx([0.4, 0.7, 1, 1])
    assert memory_of(World(1, 1), beta=0.4, beta_steps=0).sampler.beta(10**9) == 0.4


def test_weights_reach_the_gradient() -> None:
    """The same draws with and without the correction give other gradients: weighted means."""
    gradients = {}
    for beta in (0.0, 1.0):
        world = World(1, 1)
        memory = memory_of(world, beta=beta, beta_steps=0)
        play(world, memory, 40, ends=(0,))
        memory.sampler._add_new_rows(wants())
        errors = torch.linspace(0.01, 4, 39)
        memory.sampler.report(np.arange(39), errors)
        torch.manual_seed(0)
        config = dqn.Config(batch_size=8, steps_per_update=40, warmup_steps=0)
        algorithm: Any = dqn.DQN(config, spec=world.spec, torso=lambda: nn.Linear(2, 3))
        model = optim.FlatModel(algorithm.modules)
        serial = Serial(
            serial_config(),
            backend=InProcess(),
            vector=model.vector,
            parts=model.parts,
            optimizer=optim.Config(name="sgd"),
        ).join(model, 0)
        learner = Learner(algorithm, memory, serial, model, stopwatch=Stopwatch(), clip_norm=0)
        batch = next(memory.due(algorithm.demand, algorithm.targets))
        learner._gradient(batch, next(algorithm.losses(batch)))
        gradients[beta] = model.gradient.clone()
        algorithm._gradients = WithGraph()
        per_sample = next(algorithm.losses(batch)).per_sample
        expected = torch.autograd.grad(
            sum(w * loss for w, loss in zip(batch.weight, per_sample, strict=True)) / 8,
            list(algorithm.online.parameters()),
        )
        flat = torch.cat([g.reshape(-1) for g in expected])
        torch.testing.assert_close(gradients[beta], flat, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(gradients[0.0], gradients[1.0], rtol=0.05)


# --- Checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [30, 200])  # before and after the lanes wrap
def test_a_restored_memory_continues_the_same(steps: int) -> None:
    world, demand = World(2, 3), wants(every=1.5, n=2)
    shared, other = (shared_of(world, 120, readers=[range(1)]) for _ in range(2))
    memory = memory_of(world, capacity=120, seed=1, shared=shared)
    play(world, memory, steps)
    learn(memory, demand, 7)
    play(world, memory, 5)  # rows the tree has not heard of yet
    plain = json.loads(json.dumps(memory.state()))
    other.restore(shared.state(), demand.n_step)
    again = memory_of(World(2, 3), capacity=120, seed=2, shared=other)
    again.restore(plain)
    left, right = learn(memory, demand), learn(again, demand)
    assert len(left) == len(right) > 3
    for (rows, weight), (other_rows, other_weight) in zip(left, right, strict=True):
        assert rows == other_rows
        assert weight == other_weight
    np.testing.assert_array_equal(priorities(memory), priorities(again))


def learn(memory: Replay, demand: Any, most: int | None = None) -> Any:
    seen = []
    for batch in islice(batches(memory, demand), most):
        seen.append((batch.rows.tolist(), batch.weight.tolist()))
        memory.report(batch, batch.reward + torch.from_numpy(batch.rows % 7))
    return seen


def test_without_its_rows_it_starts_empty() -> None:
    world, demand = World(1, 1), wants(batch_size=4)
    memory = memory_of(world)
    play(world, memory, 30)
    learn(memory, demand)
    state = memory.state()
    memory = memory_of(world)
    memory.restore(state)
    assert memory.sampler.tree.total == 0
    assert list(batches(memory, demand)) == []
    play(world, memory, 10)
    assert learn(memory, demand)
