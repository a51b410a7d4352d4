from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyhands.algorithms import dyna_q
from manyhands.networks.world import Transitions, World
from manyhands.types import FIRST_STEP, Array, BadRequest, Batch
from support.q_batches import SPEC, a_batch

SHIFT = np.array([[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5], [-0.5, -0.5, 0]], np.float32)


def simulate(observation: Array, action: Array) -> tuple[Array, Array, Array]:
    """A small world with known rules: an action moves the state and pays its first number."""
    after = observation + SHIFT[action]
    return after, after[:, 0] * np.float32(0.1), after[:, 1] > 2.0


def make(*, grounded: bool = False, **values: Any) -> dyna_q.DynaQ:
    torch.manual_seed(0)
    return dyna_q.DynaQ(
        dyna_q.Config(gamma=0.9, **values),
        spec=SPEC,
        torso=lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU()),
        simulator=simulate if grounded else None,
    )


def real_steps(n: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    before = rng.normal(size=(n, 3)).astype(np.float32)
    action = rng.integers(4, size=n)
    after, reward, ended = simulate(before, action)
    discount = 1 - ended.astype(np.float32)
    first = (torch.from_numpy(array) for array in (reward, discount, after))
    return Batch(
        observation=torch.from_numpy(before),
        action=torch.from_numpy(action),
        reward=torch.from_numpy(reward),
        discount=torch.from_numpy(0.9 * discount),
        next_observation=torch.from_numpy(after),
        weight=torch.ones(n),
        rows=np.arange(n),
        columns=dict(zip(FIRST_STEP, first, strict=True)),
    )


def bootstrap(made: dyna_q.DynaQ, after: Tensor) -> float:
    with torch.no_grad():
        best = int(made.online(after[None])[0].argmax())
        return float(made.target(after[None])[0, best])


@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_goals_against_one_row_at_a_time(horizon: int) -> None:
    """With the true simulator: an action, then greedy steps, until an end."""
    made = make(grounded=True, imagined_share=1, horizon=horizon)
    batch = real_steps(40)
    with torch.no_grad():
        next(made.target.parameters()).add_(0.3)
    got = made.targets(batch).columns
    assert not torch.equal(got["taken"], batch.action)
    for i in range(40):
        first = simulate(batch.observation[i : i + 1].numpy(), got["taken"][i : i + 1].numpy())
        total, discount = float(first[1][0]), 0.9 * (not first[2][0])
        after = torch.from_numpy(first[0][0])
        for _ in range(horizon):
            if discount == 0:
                break
            greedy = made.online(after[None]).argmax(1).numpy()
            then, reward, ended = simulate(after[None].numpy(), greedy)
            total += discount * float(reward[0])
            discount *= 0.9 * (not ended[0])
            after = torch.from_numpy(then[0])
        total += discount * bootstrap(made, after)
        assert float(got["goal"][i]) == pytest.approx(total, rel=1e-4, abs=1e-5)


def test_other_actions_are_imagined_in_their_share() -> None:
    made, batch = make(grounded=True, imagined_share=0.5, horizon=0, explore_share=1), a_batch(6)
    many = Batch(
        observation=torch.randn(4000, 3),
        action=torch.zeros(4000, dtype=torch.int64),
        reward=torch.zeros(4000),
        discount=torch.ones(4000),
        next_observation=torch.zeros(4000, 3),
        weight=torch.ones(4000),
        rows=np.arange(4000),
    )
    before = many.action.clone()
    taken = made.targets(many).columns["taken"]
    assert torch.equal(many.action, before)  # a batch is used again
    assert float((taken != 0).float().mean()) == pytest.approx(0.5 * 0.75, abs=0.03)
    assert made.imagined_steps == pytest.approx(2000, abs=100)
    assert len(made.targets(batch).columns["goal"]) == 6


def test_the_share_follows_its_schedule_and_the_error() -> None:
    made = make(imagined_share=0.8, imagined_share_end=0.2, imagined_share_updates=100)
    assert made._share() == 0.0  # the model has learned nothing yet
    made.world.get_buffer("error").fill_(0.25)
    assert made._share() == pytest.approx(0.8 * 0.75)
    made.refreshed(50)
    assert made._share() == pytest.approx(0.5 * 0.75)
    made.refreshed(1000)
    assert made._share() == pytest.approx(0.2 * 0.75)
    constant = make(imagined_share=0.8, follow_error=False)
    assert constant._share() == 0.0
    constant.world.get_buffer("error").fill_(0.25)
    assert constant._share() == pytest.approx(0.8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For tensors this small a second thread costs more than it gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fitted(batches: int = 500) -> World:
    torch.manual_seed(0)
    world = World(3, 4, hidden=(32, 32), members=3, gate=0.75)
    optimizer = torch.optim.Adam(world.parameters(), 3e-3)
    for seed in range(batches):
        batch = real_steps(64, seed)
        ended = batch.discount == 0
        steps = Transitions(
            batch.observation, batch.action, batch.reward, ended, batch.next_observation
        )
        loss = world.losses(steps, torch.from_numpy(batch.rows % 10 == 0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return world


def test_the_model_learns_the_rules_and_knows_where_it_does_not() -> None:
    world = fitted()
    assert float(world.get_buffer("error")) < 0.05
    batch = real_steps(500, seed=10_000)
    near = world.imagine(batch.observation, batch.action)
    away = (near.observation - batch.next_observation).abs()
    assert float(away[near.trusted].mean()) < 0.1
    assert float((near.reward - batch.reward).abs()[near.trusted].mean()) < 0.05
    assert float(((near.continues == 0) == (batch.discount == 0)).float().mean()) > 0.95
    assert float(near.trusted.float().mean()) > 0.6
    far = world.imagine(batch.observation * 4, batch.action)
    assert float(far.trusted.float().mean()) < 0.3


def test_held_out_rows_teach_nothing() -> None:
    made, batch = make(), real_steps(50)
    losses = next(made.losses(batch))
    assert losses.part == "world"
    held_out = batch.rows % dyna_q.HELD_OUT == 0
    assert (losses.per_sample.detach().numpy() == 0).tolist() == held_out.tolist()


def test_the_model_is_fitted_at_its_cadence() -> None:
    made = make(updates_per_fit=3)
    parts, version = [], 0
    for _ in range(6):
        made.refreshed(version)
        parts.append([losses.part for losses in made.losses(made.targets(real_steps(20)))])
        version += len(parts[-1])
    assert parts == [["world", "q"], ["q"], ["q"]] * 2


def test_distrusted_steps_leave_the_real_ones() -> None:
    made, batch = make(imagined_share=1.0, horizon=2), real_steps(30)
    made.world.get_buffer("error").fill_(0.0)  # a model that nothing is trusted of: limit 0
    got = made.targets(batch)
    assert torch.equal(got.columns["taken"], batch.action)
    assert made.imagined_steps == 0
    assert made._gate_rate > 0


def test_state_brings_everything_back() -> None:
    one, other = (make(imagined_share=1.0, model_hidden=(32, 32)) for _ in range(2))
    for algorithm in (one, other):
        algorithm.world.load_state_dict(fitted(30).state_dict())
    one.targets(real_steps(30))
    one.refreshed(7)
    other.restore(one.state())
    mine, theirs = one.targets(real_steps(30)), other.targets(real_steps(30))
    assert torch.equal(mine.columns["taken"], theirs.columns["taken"])
    assert torch.equal(mine.columns["goal"], theirs.columns["goal"])


def test_of_several_learners_some_explore_and_some_exploit() -> None:
    made = make(explore_share=0.5)
    made.divide(0, 1)
    assert made._explore_share == 0.5
    shares = []
    for index in range(4):
        made.divide(index, 4)
        shares.append(made._explore_share)
    assert shares == [1.0, 1.0, 0.0, 0.0]


def test_pixels_are_refused() -> None:
    pixels = replace(SPEC, frame_shape=(84, 84), frame_dtype="uint8", stack=4)
    with pytest.raises(BadRequest, match="predicts vectors"):
        dyna_q.DynaQ(dyna_q.Config(), spec=pixels, torso=nn.Flatten)
