"""Returns: what a step was worth, seen from its end. Pure functions of [time, lanes] tensors.

Everywhere: `discount` has gamma in it and is 0 where nothing follows (a terminal step, a lost
life); `next_value` is the value of the observation that followed, the true last one where an
episode was cut short; `ended` says that the next row is another episode's. So a terminated
episode never bootstraps, a truncated one does, and neither looks beyond its end. They are
vectorised over lanes; the recursion over time is a loop of as many turns as the rollout has steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def next_values(value: Tensor, after: Tensor, after_at: Tensor) -> Tensor:
    """The value of what followed each step: the next row's, or that of `after` where given."""
    following = torch.cat([value[1:], torch.zeros_like(value[:1])])
    following.view(-1)[after_at] = after
    return following


def lambda_returns(
    reward: Tensor, discount: Tensor, next_value: Tensor, ended: Tensor, lam: float
) -> Tensor:
    """TD(lambda): every n-step return, the longer ones weighted by powers of lambda.

    lam 0: one step and a bootstrap. lam 1: all rewards to the rollout's or the episode's end.
    """
    goal = torch.empty_like(reward)
    following = next_value[-1]
    for t in reversed(range(len(reward))):
        ahead = torch.where(ended[t], next_value[t], following)
        goal[t] = reward[t] + discount[t] * torch.lerp(next_value[t], ahead, lam)
        following = goal[t]
    return goal


def n_step(reward: Tensor, discount: Tensor, next_value: Tensor, ended: Tensor) -> Tensor:
    """All rewards up to the rollout's or the episode's end, and a bootstrap there (A3C)."""
    return lambda_returns(reward, discount, next_value, ended, 1.0)


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, lam: float
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016): sums of TD errors.

    It is the lambda-return less the value, and is computed so.
    """
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

    `lam` shortens the traces (their remark 2), in the advantage as well: on-policy that is GAE.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_max), ratio.clamp(max=c_max) * lam
    error = rho * (reward + discount * next_value - value)
    goal, ahead = torch.empty_like(value), torch.empty_like(value)
    excess = torch.zeros_like(value[-1])  # goal less value, of the step after
    for t in reversed(range(len(reward))):
        excess = torch.where(ended[t], 0.0, excess)
        ahead[t] = next_value[t] + lam * excess
        excess = error[t] + discount[t] * c[t] * excess
        goal[t] = value[t] + excess
    return VTrace(goal, rho * (reward + discount * ahead - value))
