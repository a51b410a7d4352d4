"""Returns and advantages: pure functions of [time, lanes] tensors.

- `discount` includes gamma. It is 0 where nothing follows: a terminal step, a lost life.
- `next_value` is the value of the next observation; for a truncated episode, of its last one.
- `ended`: the next row belongs to another episode.

So a terminated episode does not bootstrap, a truncated one does, and no return crosses the end of
an episode. The functions loop over time and are vectorised over lanes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def next_values(value: Tensor, after: Tensor, after_at: Tensor) -> Tensor:
    """The value after each step: the next row's, or that of `after` at the steps `after_at`."""
    following = torch.cat([value[1:], torch.zeros_like(value[:1])])
    following.view(-1)[after_at] = after
    return following


def lambda_returns(
    reward: Tensor, discount: Tensor, next_value: Tensor, ended: Tensor, lam: float
) -> Tensor:
    """TD(lambda): a mean of all n-step returns, weighted by powers of lambda.

    lam 0: one step and a bootstrap. lam 1: all rewards to the end of the rollout or episode.
    """
    goal = torch.empty_like(reward)
    following = next_value[-1]
    for t in reversed(range(len(reward))):
        ahead = torch.where(ended[t], next_value[t], following)
        goal[t] = reward[t] + discount[t] * torch.lerp(next_value[t], ahead, lam)
        following = goal[t]
    return goal


def n_step(reward: Tensor, discount: Tensor, next_value: Tensor, ended: Tensor) -> Tensor:
    """All rewards to the end of the rollout or episode, then a bootstrap (Mnih et al. 2016)."""
    return lambda_returns(reward, discount, next_value, ended, 1.0)


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, lam: float
) -> Tensor:
    """GAE (Schulman et al. 2016): the lambda-return minus the value."""
    return lambda_returns(reward, discount, next_value, ended, lam) - value


class VTrace(NamedTuple):
    goal: Tensor  # [t, n] what the value should be
    advantage: Tensor  # [t, n] of the action taken, importance weight included


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    next_value: Tensor,
    ended: Tensor,
    *,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    lam: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al. 2018): `log_ratio` is log pi(a|x) - log mu(a|x).

    `lam` shortens the traces (remark 2), also in the advantage: on-policy that is GAE.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_max), ratio.clamp(max=c_max) * lam
    error = rho * (reward + discount * next_value - value)
    goal, ahead = torch.empty_like(value), torch.empty_like(value)
    excess = torch.zeros_like(value[-1])  # goal minus value of the next step
    for t in reversed(range(len(reward))):
        excess = torch.where(ended[t], 0.0, excess)
        ahead[t] = next_value[t] + lam * excess
        excess = error[t] + discount[t] * c[t] * excess
        goal[t] = value[t] + excess
    return VTrace(goal, rho * (reward + discount * ahead - value))
