"""IMPALA: its losses and gradients step by step, and what it is where actors are not behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.algorithms import a2c, impala
from manyhands.maths import policies
from manyhands.types import Batch, Rollout
from support.actor_critics import SPEC, chances, close, make
from support.gradients import WithGraph, backward

STEPS, LANES = 5, 2
GAMMA = 0.9


def story() -> tuple[torch.Tensor, Rollout]:
    """Observations, and what happened: lane 0 terminates at step 1 and is cut short at step 3."""
    generator = torch.Generator().manual_seed(1)
    ended = torch.zeros(STEPS, LANES, dtype=torch.bool)
    ended[1, 0] = ended[3, 0] = True
    discount = torch.full((STEPS, LANES), GAMMA)
    discount[1, 0] = 0.0
    discount[2, 1] = 0.0  # a life lost: nothing is expected after it, but the episode continues
    after_at = torch.tensor([3 * LANES, 4 * LANES, 4 * LANES + 1])
    rollout = Rollout(
        action=torch.randint(0, SPEC.actions, (STEPS, LANES), generator=generator),
        reward=torch.randn(STEPS, LANES, generator=generator),
        discount=discount,
        ended=ended,
        after=torch.randn(3, 3, generator=generator),
        after_at=after_at,
        columns={"log_prob": torch.randn(STEPS, LANES, generator=generator) - 1.0},
    )
    return torch.randn(STEPS * LANES, 3, generator=generator), rollout


def batch_of(made: Any, observation: torch.Tensor, rollout: Rollout) -> Batch:
    seen = made.targets(rollout)
    return Batch(
        observation=observation,
        action=seen.action.flatten(),
        reward=seen.reward.flatten(),
        discount=seen.discount.flatten(),
        next_observation=torch.zeros(0),
        weight=torch.ones(STEPS * LANES),
        rows=np.arange(STEPS * LANES),
        columns={name: column.flatten(0, 1) for name, column in seen.columns.items()},
    )


def gradient(made: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """As the learner takes it, of every part at once."""
    for module in made.modules.values():
        module.zero_grad()
    for losses in list(made.losses(batch)):
        backward(losses)
    named = [(p, n, w) for p, module in made.modules.items() for n, w in module.named_parameters()]
    return {f"{part}.{name}": weight.grad.clone() for part, name, weight in named}


def slow_vtrace(
    made: Any, observation: torch.Tensor, rollout: Rollout
) -> tuple[list[float], list[float]]:
    """What the value should be and rho times the advantage of every step, by recursion."""
    known = [chances(made, seen) for seen in observation]
    pairs = zip(rollout.after_at.tolist(), rollout.after, strict=True)
    after = {at: chances(made, seen)[1] for at, seen in pairs}
    config = made.config

    def ratio(at: int) -> float:
        chance = known[at][0][int(rollout.action.flatten()[at])]
        return chance / math.exp(float(rollout.columns["log_prob"].flatten()[at]))

    def following(at: int, inside: Any) -> float:
        """Of the step after: what is said of it in the rollout, or the critic's word."""
        if float(rollout.discount.flatten()[at]) == 0:
            return 0.0
        return after[at] if at in after else inside(at + LANES)

    def value(at: int) -> float:
        return known[at][1]

    def goal(at: int) -> float:
        r, d = float(rollout.reward.flatten()[at]), float(rollout.discount.flatten()[at])
        delta = min(config.rho_bar, ratio(at)) * (r + d * following(at, value) - value(at))
        more = following(at, goal) - following(at, value)
        return value(at) + delta + d * config.lam * min(config.c_bar, ratio(at)) * more

    def advantage(at: int) -> float:
        r, d = float(rollout.reward.flatten()[at]), float(rollout.discount.flatten()[at])
        ahead = config.lam * following(at, goal) + (1 - config.lam) * following(at, value)
        return min(config.rho_bar, ratio(at)) * (r + d * ahead - value(at))

    places = range(STEPS * LANES)
    return [goal(at) for at in places], [advantage(at) for at in places]


CASES = [
    {"rho_bar": 1.0, "c_bar": 1.0},
    {"rho_bar": 2.0, "c_bar": 0.7},
    {"rho_bar": 1.0, "c_bar": 1.0, "lam": 0.8},
    {"shared": False},
]


@pytest.mark.parametrize("options", CASES)
def test_gradient_is_the_papers_one_step_after_the_other(options: dict[str, Any]) -> None:
    made = make(impala, rollout_steps=STEPS, gamma=GAMMA, entropy=0.1, value_weight=0.7, **options)
    observation, rollout = story()
    batch = batch_of(made, observation, rollout)
    found = gradient(made, batch)
    goal, advantage = slow_vtrace(made, observation, rollout)
    for module in made.modules.values():
        module.zero_grad()
    made.networks.gradients = dict.fromkeys(made.modules, WithGraph())
    for at in range(STEPS * LANES):
        logits, value = made.networks.both(observation[at : at + 1])
        chance = torch.softmax(logits[0], 0)
        loss = -advantage[at] * chance[batch.action[at]].log() + 0.7 * (goal[at] - value[0]) ** 2
        loss = loss + 0.1 * (chance * chance.log()).sum()
        (loss / (STEPS * LANES)).backward()
    for part, module in made.modules.items():
        for name, weight in module.named_parameters():
            torch.testing.assert_close(found[f"{part}.{name}"], weight.grad, rtol=1e-4, atol=1e-5)


def test_losses_one_step_at_a_time() -> None:
    made = make(impala, rollout_steps=STEPS, gamma=GAMMA, entropy=0.1, value_weight=0.7)
    observation, rollout = story()
    batch = batch_of(made, observation, rollout)
    (losses,) = made.losses(batch)
    goal, advantage = slow_vtrace(made, observation, rollout)
    for at in range(STEPS * LANES):
        chance, value = chances(made, observation[at])
        entropy = -sum(p * math.log(p) for p in chance)
        loss = -advantage[at] * math.log(chance[int(batch.action[at])]) - 0.1 * entropy
        loss += 0.7 * (goal[at] - value) ** 2
        assert float(losses.per_sample[at].detach()) == close(loss)
        assert float(losses.priorities[at]) == close(abs(goal[at] - value))


def on_policy(made: Any, observation: torch.Tensor, rollout: Rollout) -> None:
    """As if the actor had had these very parameters."""
    with torch.no_grad():
        logits, value = made.networks.both(observation)
        same = policies.policy_terms(logits, rollout.action.flatten()).log_prob
    shape = (STEPS, LANES)
    rollout.columns = {"log_prob": same.view(shape), "value": value.view(shape)}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("lam", [1.0, 0.9])
@pytest.mark.parametrize("normalize", [False, True])
def test_with_actors_not_behind_its_gradient_is_that_of_a2c(
    shared: bool, lam: float, normalize: bool
) -> None:
    options = {"rollout_steps": STEPS, "gamma": GAMMA, "lam": lam, "shared": shared}
    ours, theirs = (make(m, normalize=normalize, **options) for m in (impala, a2c))
    observation, rollout = story()
    on_policy(ours, observation, rollout)
    found = gradient(ours, batch_of(ours, observation, rollout))
    expected = gradient(theirs, batch_of(theirs, observation, rollout))
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_a_step_the_learner_would_hardly_take_hardly_counts() -> None:
    made = make(impala, rollout_steps=STEPS, gamma=GAMMA, entropy=0.0, value_weight=0.5)
    observation, rollout = story()
    on_policy(made, observation, rollout)
    near = gradient(made, batch_of(made, observation, rollout))
    rollout.columns = {"log_prob": rollout.columns["log_prob"] + 20.0}  # a ratio of e^-20
    far = gradient(made, batch_of(made, observation, rollout))
    assert sum(float(g.abs().sum()) for g in near.values()) > 0.1
    assert sum(float(g.abs().sum()) for g in far.values()) < 1e-5


def test_what_is_remembered_is_the_chance_of_what_was_done() -> None:
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    made = make(impala)
    action, columns = made.act(seen, np.ones(5, np.float32), np.random.default_rng(1))
    assert set(columns) == set(made.remembers) == {"log_prob"}
    for i in range(5):
        chance, _ = chances(made, torch.from_numpy(seen[i]))
        assert float(columns["log_prob"][i]) == close(math.log(chance[action[i]]))
