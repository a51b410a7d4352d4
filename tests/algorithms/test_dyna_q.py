from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyhands.algorithms import dyna_q
from manyhands.backends.inprocess import InProcess
from manyhands.memory.storage import imagined
from manyhands.memory.storage.imagined import ImaginedMemory
from manyhands.networks.world import Transitions, World
from manyhands.types import FIRST_STEP, Array, BadRequest, Batch
from support.q_batches import SPEC

SHIFT = np.array([[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5], [-0.5, -0.5, 0]], np.float32)


def simulate(observation: Array, action: Array) -> tuple[Array, Array, Array]:
    """A small world with known rules: an action moves the state and pays its first number."""
    after = observation + SHIFT[action]
    return after, after[:, 0] * np.float32(0.1), after[:, 1] > 2.0


def kept(capacity: int = 8000) -> ImaginedMemory:
    return ImaginedMemory.alone(SPEC, capacity, at_once=128)


def make(*, grounded: bool = False, **values: Any) -> dyna_q.DynaQ:
    torch.manual_seed(0)
    return dyna_q.DynaQ(
        dyna_q.Config(gamma=0.9, **values),
        spec=SPEC,
        torso=lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU()),
        imagined=kept(),
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


def test_goals_against_one_row_at_a_time() -> None:
    """Of real steps, and of imagined ones, which the true simulator makes."""
    made, batch = make(grounded=True, horizon=1), real_steps(400)
    with torch.no_grad():
        next(made.target.parameters()).add_(0.3)
    got = made.targets(batch)
    imagined = (got.observation != batch.observation).any(1) | (got.action != batch.action)
    assert 100 < int(imagined.sum()) < 250
    for i in range(len(got.action)):
        before, action = got.observation[i : i + 1].numpy(), got.action[i : i + 1].numpy()
        after, reward, ended = simulate(before, action)
        assert torch.allclose(got.next_observation[i], torch.from_numpy(after[0]))
        with torch.no_grad():
            best = int(made.online(got.next_observation[i : i + 1])[0].argmax())
            value = float(made.target(got.next_observation[i : i + 1])[0, best])
        goal = float(reward[0]) + 0.9 * (not ended[0]) * value
        assert float(got.columns["goal"][i]) == pytest.approx(goal, rel=1e-4, abs=1e-5)


def test_imagined_steps_take_their_share_of_a_batch() -> None:
    made, batch = make(grounded=True, horizon=1), real_steps(4000)
    before = batch.action.clone()
    batch.rows += 7_000_000
    learned = made.targets(batch)
    assert torch.equal(batch.action, before)  # a batch is used again
    assert made.imagined_steps == 64
    assert float((learned.rows != batch.rows).mean()) == pytest.approx(0.5, abs=0.03)
    assert set(learned.rows) <= set(batch.rows)  # of the real states where episodes began
    assert torch.equal(learned.columns["real"], batch.observation)


def test_an_episode_goes_on_until_its_end_or_its_horizon() -> None:
    """Every action counts with the discounted rewards to the episode's last observation."""
    made = make(grounded=True, horizon=3, imagined_episodes=50, imagined_share=0.5)
    lengths = []
    for turn in range(12):
        batch = real_steps(50, seed=turn)
        batch.rows += 1000 * turn
        made.targets(batch)
    learned = made.imagined.state()["steps"]
    for origin in set(learned["origin"].tolist()):
        rows = learned["origin"] == origin
        before, action = learned["observation"][rows], learned["action"][rows]
        total, discount = 0.0, 1.0
        lengths.append(len(action))
        for i in range(len(action))[::-1]:
            after, reward, ended = simulate(before[i : i + 1], action[i : i + 1])
            last = learned["next_observation"][rows][i]
            assert np.allclose(after[0], before[i + 1] if i + 1 < len(before) else last)
            total, discount = float(reward[0]) + 0.9 * (not ended[0]) * total, 0.9 * discount
            discount *= not ended[0]
            assert learned["reward"][rows][i] == pytest.approx(total, abs=1e-5)
            assert learned["discount"][rows][i] == pytest.approx(discount, abs=1e-6)
    assert set(lengths) == {1, 2, 3}


def test_only_the_first_action_is_not_the_policys() -> None:
    made = make(grounded=True, horizon=4, imagined_episodes=80, explore_share=1)
    for turn in range(4):
        made.targets(real_steps(80, seed=turn))
    learned = made.imagined.state()["steps"]
    first = np.isin(learned["observation"], real_steps(80, seed=0).observation.numpy()).all(1)
    with torch.no_grad():
        best = made.online(torch.from_numpy(learned["observation"])).argmax(1).numpy()
    assert (learned["action"] == best)[~first].all()
    assert np.mean((learned["action"] == best)[first]) < 0.5


def test_learners_share_what_they_imagine() -> None:
    with closing(InProcess()) as backend:
        stream = imagined.share(SPEC, 1000, learners=2, at_once=128, backend=backend)
        ends = [ImaginedMemory(stream, at_once=128, writer=n) for n in range(2)]
        one, other = (make(grounded=True, imagined_share=1.0, horizon=1) for _ in range(2))
        one.divide(0, 2, ends[0])
        other.divide(1, 2, ends[1])
        batch = real_steps(200)
        batch.rows += 5000
        one.targets(batch)
        learned = other.targets(real_steps(200))
        assert set(learned.rows) & set(batch.rows)
        assert set(learned.rows) & set(range(200))


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
        optimizer.zero_grad(set_to_none=False)
        per_step, backward = world.losses(steps, torch.from_numpy(batch.rows % 10 == 0))
        backward(torch.full_like(per_step, 1 / 64))
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
    losses = next(made.losses(made.targets(batch)))
    assert losses.part == "world"
    held_out = batch.rows % dyna_q.HELD_OUT == 0
    assert (losses.per_sample.detach().numpy() == 0).tolist() == held_out.tolist()


@pytest.mark.parametrize(("first", "period"), [(0, 1), (600, 2), (100_000, 3)])
def test_the_model_is_fitted_at_its_cadence(first: int, period: int) -> None:
    made = make(updates_per_fit=3)
    parts, version = [], first
    for _ in range(2 * period):
        made.refreshed(version)
        parts.append([losses.part for losses in made.losses(made.targets(real_steps(20)))])
        version += len(parts[-1])
    assert parts == [["world", "q"], *[["q"]] * (period - 1)] * 2


def test_steps_that_are_not_trusted_are_not_learned() -> None:
    made, batch = make(imagined_share=1.0), real_steps(30)
    made.world.get_buffer("error").fill_(0.0)
    made.world.get_buffer("limit").fill_(-9.0)
    got = made.targets(batch)
    assert torch.equal(got.action, batch.action)
    assert made.imagined_steps == 0
    assert made._gate_rate > 0


def test_state_brings_everything_back() -> None:
    one, other = (make(imagined_share=1.0, model_hidden=(32, 32)) for _ in range(2))
    for algorithm in (one, other):
        algorithm.world.load_state_dict(fitted(150).state_dict())
    for _ in range(7):
        one.targets(real_steps(30))
    one.refreshed(7)
    other.restore(one.state())
    other.imagined.restore(one.imagined.state())
    mine, theirs = one.targets(real_steps(30)), other.targets(real_steps(30))
    assert torch.equal(mine.action, theirs.action)
    assert torch.equal(mine.columns["goal"], theirs.columns["goal"])
    assert one.imagined_steps > 50


def test_of_several_learners_some_explore_and_some_exploit() -> None:
    made = make(explore_share=0.5)
    made.divide(0, 1, made.imagined)
    assert made._explore_share == 0.5
    shares = []
    for index in range(4):
        made.divide(index, 4, made.imagined)
        shares.append(made._explore_share)
    assert shares == [1.0, 1.0, 0.0, 0.0]


def test_pixels_are_refused() -> None:
    pixels = replace(SPEC, frame_shape=(84, 84), frame_dtype="uint8", stack=4)
    with pytest.raises(BadRequest, match="predicts vectors"):
        dyna_q.DynaQ(dyna_q.Config(), spec=pixels, torso=nn.Flatten, imagined=kept())


def test_whole_numbers_are_imagined_whole() -> None:
    world = World(3, 4, hidden=(8,), members=2, gate=0.75)
    batch = real_steps(64)
    batch.observation[:, 2] = (batch.observation[:, 2] > 0).float()
    ended = batch.discount == 0
    steps = Transitions(
        batch.observation, batch.action, batch.reward, ended, batch.next_observation
    )
    world.losses(steps, torch.zeros(64, dtype=torch.bool))
    imagined = world.imagine(batch.observation, batch.action).observation
    assert torch.equal(imagined[:, 2], imagined[:, 2].round())
    assert not torch.equal(imagined[:, :2], imagined[:, :2].round())


def test_the_gradient_is_that_of_the_losses() -> None:
    """By differences of the losses; the doubt's own goal is held, as it has no gradient."""
    torch.manual_seed(0)
    world = World(3, 4, hidden=(8, 8), members=2, gate=0.75).double()
    batch = real_steps(40)
    batch.discount[::4] = 0.0
    steps = Transitions(
        batch.observation.double(),
        batch.action,
        4 * batch.reward.double(),
        batch.discount == 0,
        batch.next_observation.double(),
    )
    held_out = torch.arange(40) % 10 == 0
    world.losses(steps, held_out)
    world._note = lambda *_: None  # type: ignore[method-assign]
    whole, errors = torch.linspace(0.1, 1, 40).double(), world._errors
    with torch.no_grad():
        out = world(steps.observation, steps.action)
        doubt = out[..., -1] - errors(out, _goal(world, steps), steps, held_out)[0][..., -1]

    def with_held_doubt(out: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        away, counts = errors(out, *rest)
        away[..., -1] = out[..., -1] - doubt
        return away, counts

    setattr(world, "_errors", with_held_doubt)  # noqa: B010
    per_step, backward = world.losses(steps, held_out)
    backward(whole)
    for parameter in world.parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)  # type: ignore[union-attr]
        for at in range(0, len(flat), max(1, len(flat) // 3)):
            ends = []
            for step in (1e-6, -2e-6):
                flat[at] += step
                ends.append(float(world.losses(steps, held_out)[0] @ whole))
            flat[at] += 1e-6
            assert float(gradient[at]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-5)
    assert per_step[held_out].abs().max() == 0


def _goal(world: World, steps: Transitions) -> Tensor:
    follows = torch.cat([steps.next_observation - steps.observation, steps.reward[:, None]], 1)
    return world._normal("follows", follows)
