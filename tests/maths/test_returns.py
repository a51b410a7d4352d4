"""Returns against slow, obvious references, and by their properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhands.maths import returns

GAMMA = 0.9


@pytest.fixture(scope="module", autouse=True)
def small_numbers_are_numbers() -> None:
    """A run that trained in this process before had torch flush them to zero."""
    torch.set_flush_denormal(False)


class Story:
    """Some steps of some lanes: rewards, ends, lost lives, values; made from a seed."""

    def __init__(self, seed: int, steps: int, lanes: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (steps, lanes)
        terminated = rng.random(shape) < 0.15
        truncated = ~terminated & (rng.random(shape) < 0.15)
        life = ~terminated & (rng.random(shape) < 0.1)
        self.reward = torch.tensor(rng.normal(size=shape), dtype=torch.float64)
        self.ended = torch.tensor(terminated | truncated)
        self.discount = GAMMA * torch.tensor(~(terminated | life), dtype=torch.float64)
        self.value = torch.tensor(rng.normal(size=shape), dtype=torch.float64)
        after = torch.tensor(rng.normal(size=shape), dtype=torch.float64)
        cut = self.ended.clone()
        cut[-1] = True
        at = cut.flatten().nonzero().squeeze(1)
        self.next_value = returns.next_values(self.value, after.flatten()[at], at)
        self.log_ratio = torch.tensor(rng.normal(size=shape), dtype=torch.float64)

    @property
    def basics(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.reward, self.discount, self.next_value, self.ended

    def n_step(self, t: int, lane: int, n: int) -> float:
        """n rewards from t on and a bootstrap; fewer where the episode or the rollout ends."""
        total, factor = 0.0, 1.0
        for at in range(t, len(self.reward)):
            total += factor * float(self.reward[at, lane])
            factor *= float(self.discount[at, lane])
            if at - t + 1 == n or self.ended[at, lane] or at + 1 == len(self.reward):
                return total + factor * float(self.next_value[at, lane])
        raise AssertionError

    def ahead(self, t: int, lane: int) -> int:
        """How many steps from t on are known."""
        n = 1
        while t + n < len(self.reward) and not self.ended[t + n - 1, lane]:
            n += 1
        return n


stories = st.builds(Story, st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4))


def test_what_followed_is_the_next_row_or_what_was_given() -> None:
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = returns.next_values(value, torch.tensor([7.0, 8.0, 9.0]), torch.tensor([1, 2, 3]))
    assert found.tolist() == [[3.0, 7.0], [8.0, 9.0]]
    assert value.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@settings(max_examples=60, deadline=None)
@given(stories, st.floats(0, 1))
def test_lambda_returns_are_a_weighted_sum_of_n_step_returns(story: Story, lam: float) -> None:
    found = returns.lambda_returns(*story.basics, lam)
    for t, lane in np.ndindex(*story.reward.shape):
        longest = story.ahead(t, lane)
        each = [story.n_step(t, lane, n) for n in range(1, longest + 1)]
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, longest)] + [lam ** (longest - 1)]
        expected = sum(w * g for w, g in zip(weights, each, strict=True))
        assert float(found[t, lane]) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(stories)
def test_n_step_goes_to_the_end(story: Any) -> None:
    found = returns.n_step(*story.basics)
    for t, lane in np.ndindex(*story.reward.shape):
        assert float(found[t, lane]) == pytest.approx(story.n_step(t, lane, 10**6), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(stories, st.floats(0, 1))
def test_gae_is_the_discounted_sum_of_td_errors(story: Any, lam: float) -> None:
    reward, discount, next_value, ended = story.basics
    found = returns.gae(reward, discount, story.value, next_value, ended, lam)
    error = reward + discount * next_value - story.value
    for t, lane in np.ndindex(*reward.shape):
        total, factor = 0.0, 1.0
        for at in range(t, t + story.ahead(t, lane)):
            total += factor * float(error[at, lane])
            factor *= lam * float(discount[at, lane])
        assert float(found[t, lane]) == pytest.approx(total, abs=1e-9)


def test_lambda_one_is_monte_carlo_where_the_episode_ends_inside() -> None:
    reward = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    ended = torch.tensor([[False], [False], [True], [False]])
    discount = torch.tensor([[0.5], [0.5], [0.0], [0.5]])
    next_value = torch.full((4, 1), 1000.0)
    found = returns.lambda_returns(reward, discount, next_value, ended, 1.0)
    assert found.flatten().tolist() == [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4, 8 + 500]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_truncation_bootstraps_and_termination_does_not(lam: float) -> None:
    reward, next_value = torch.ones(1, 2), torch.full((1, 2), 10.0)
    discount = torch.tensor([[0.9, 0.0]])  # the first was cut short, the second is over
    ended = torch.ones(1, 2, dtype=torch.bool)
    found = returns.lambda_returns(reward, discount, next_value, ended, lam)
    assert found.tolist() == [[10.0, 1.0]]


# --- V-trace -----------------------------------------------------------------------------------


def slow_vtrace(
    story: Story, rho_max: float, c_max: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """v_s = V(x_s) + sum over t >= s of gamma^(t-s) (product of c_s .. c_t-1) delta_t V."""
    ratio = story.log_ratio.exp().numpy()
    rho, c = np.minimum(ratio, rho_max), lam * np.minimum(ratio, c_max)
    r, d, v, nv = (x.numpy() for x in (story.reward, story.discount, story.value, story.next_value))
    goal, advantage = np.zeros_like(r), np.zeros_like(r)
    for t, lane in np.ndindex(*r.shape):
        total, factor = v[t, lane], 1.0
        for at in range(t, t + story.ahead(t, lane)):
            delta = rho[at, lane] * (r[at, lane] + d[at, lane] * nv[at, lane] - v[at, lane])
            total += factor * delta
            factor *= d[at, lane] * c[at, lane]
        goal[t, lane] = total
    for t, lane in np.ndindex(*r.shape):
        inside = story.ahead(t, lane) > 1
        ahead = lam * goal[t + 1, lane] + (1 - lam) * nv[t, lane] if inside else nv[t, lane]
        advantage[t, lane] = rho[t, lane] * (r[t, lane] + d[t, lane] * ahead - v[t, lane])
    return goal, advantage


@settings(max_examples=60, deadline=None)
@given(
    stories,
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from([0.0, 0.8, 1.0]),
)
def test_vtrace_is_the_papers_sum(story: Any, rho_max: float, c_max: float, lam: float) -> None:
    reward, discount, next_value, ended = story.basics
    found = returns.vtrace(
        story.log_ratio, reward, discount, story.value, next_value, ended,
        rho_max=rho_max, c_max=c_max, lam=lam,
    )  # fmt: skip
    goal, advantage = slow_vtrace(story, rho_max, c_max, lam)
    np.testing.assert_allclose(found.goal, goal, atol=1e-9)
    np.testing.assert_allclose(found.advantage, advantage, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(stories, st.sampled_from([0.0, 0.8, 1.0]))
def test_on_policy_vtrace_is_the_lambda_return(story: Story, lam: float) -> None:
    reward, discount, next_value, ended = story.basics
    same = torch.zeros_like(reward)
    found = returns.vtrace(same, reward, discount, story.value, next_value, ended, lam=lam)
    torch.testing.assert_close(found.goal, returns.lambda_returns(*story.basics, lam))
    torch.testing.assert_close(
        found.advantage, returns.gae(reward, discount, story.value, next_value, ended, lam)
    )
