"""A world model: an ensemble of dense networks that predicts what follows an action.

Each member predicts the change of the observation, the reward, and whether the episode ends. The
weights of all members lie in the same tensors, so that one product computes all members. They see
the same batches and differ by their first weights. Where the members disagree the model has seen
too little, and `Imagined.trusted` is False.

The running means and scales are buffers: checkpoints hold them, and learners share them.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST_INPUT = 6.0  # standard deviations; a network cannot extrapolate further
HUBER_FROM = 3.0  # standard deviations; contacts and crashes are outliers
SLOWEST_RATE = 1e-3  # of the running means; the first ones count more
ALWAYS_TRUSTED = 0.05  # standard deviations; a model that agrees so well needs no gate
JUDGING_RATE = 0.01  # of the held-out error and the gate, per batch
LEAST_SCALE = 1e-4  # a constant has no scale of its own


class Imagined(NamedTuple):
    """What the model expects after b actions."""

    observation: Tensor  # [b, d]
    reward: Tensor  # [b]
    continues: Tensor  # [b] float32; 0: the episode ends
    trusted: Tensor  # [b] bool; the members agree as well as on real steps


class Transitions(NamedTuple):
    """b real steps to learn from."""

    observation: Tensor  # [b, d]
    action: Tensor  # [b]
    reward: Tensor  # [b]
    ended: Tensor  # [b] bool
    next_observation: Tensor  # [b, d]


class World(nn.Module):
    def __init__(
        self, size: int, actions: int, *, hidden: tuple[int, ...], members: int, gate: float
    ) -> None:
        """`gate`: the share of held-out real steps whose disagreement is small enough to trust."""
        super().__init__()
        self.size, self.actions, self.members, self.gate = size, actions, members, gate
        sizes = (size + actions, *hidden, size + 2)  # out: changes, reward, logit of the end
        self.weights = nn.ParameterList(
            (torch.rand(members, i, o) * 2 - 1) / math.sqrt(i) for i, o in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(members, 1, o) for o in sizes[1:])
        for name, outputs in (("seen", size), ("follows", size + 1)):
            self.register_buffer(f"{name}_mean", torch.zeros(outputs))
            self.register_buffer(f"{name}_square", torch.ones(outputs))
        self.register_buffer("fits", torch.zeros(1))
        self.register_buffer("error", torch.ones(1))  # held out, of trusted steps; 1: no model
        self.register_buffer("limit", torch.zeros(1))  # the largest disagreement that is trusted

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """[members, b, d + 2]: changes and reward in standard deviations, the logit of the end."""
        seen = (observation - self.get_buffer("seen_mean")) / self._scale("seen")
        known = seen.clamp(-LARGEST_INPUT, LARGEST_INPUT)
        x = torch.cat([known, F.one_hot(action, self.actions).to(known.dtype)], 1)
        x = x.expand(self.members, -1, -1)
        *inner, last = zip(self.weights, self.biases, strict=True)
        for weight, bias in inner:
            x = torch.baddbmm(bias, x, weight).relu_()
        return torch.baddbmm(last[1], x, last[0])

    @torch.no_grad()
    def imagine(self, observation: Tensor, action: Tensor) -> Imagined:
        out = self(observation, action)
        expected = out.mean(0)
        follows = expected[:, :-1] * self._scale("follows") + self.get_buffer("follows_mean")
        return Imagined(
            observation + follows[:, :-1],
            follows[:, -1],
            (expected[:, -1] <= 0).to(follows.dtype),
            self.disagreement(out) <= self.get_buffer("limit"),
        )

    def disagreement(self, out: Tensor) -> Tensor:
        """[b]: the largest standard deviation over the members, of any change or the reward."""
        return out[..., :-1].std(0).amax(-1)

    def losses(self, steps: Transitions, held_out: Tensor) -> Tensor:
        """One loss a step, the sum over the members; 0 for steps that are held out.

        What follows an end is not learned: it is often outside of what else happens.
        """
        follows = torch.cat([steps.next_observation - steps.observation, steps.reward[:, None]], 1)
        self._note(steps.observation, follows)
        goal = (follows - self.get_buffer("follows_mean")) / self._scale("follows")
        out = self(steps.observation, steps.action)
        away = F.huber_loss(
            out[..., :-1], goal.expand(self.members, -1, -1), reduction="none", delta=HUBER_FROM
        )
        changes = away[..., :-1].mean(-1) * ~steps.ended
        ends = steps.ended.to(out.dtype).expand(self.members, -1)
        end = F.binary_cross_entropy_with_logits(out[..., -1], ends, reduction="none")
        self._judge(out.detach(), goal, held_out & ~steps.ended)
        return (changes + away[..., -1] + end).sum(0) * ~held_out

    @torch.no_grad()
    def _note(self, observation: Tensor, follows: Tensor) -> None:
        """Follows the means and scales of observations, changes and rewards."""
        fits = self.get_buffer("fits")
        rate = max(1.0 / (float(fits) + 1), SLOWEST_RATE)
        for name, values in (("seen", observation), ("follows", follows)):
            self.get_buffer(f"{name}_mean").lerp_(values.mean(0), rate)
            self.get_buffer(f"{name}_square").lerp_(values.square().mean(0), rate)
        fits += 1

    def _scale(self, name: str) -> Tensor:
        mean, square = self.get_buffer(f"{name}_mean"), self.get_buffer(f"{name}_square")
        return (square - mean.square()).clamp(min=LEAST_SCALE**2).sqrt()

    @torch.no_grad()
    def _judge(self, out: Tensor, goal: Tensor, held_out: Tensor) -> None:
        """Follows the disagreement on held-out steps, and the error of those that are trusted."""
        if not held_out.any():
            return
        out, goal = out[:, held_out], goal[held_out]
        disagreement, limit = self.disagreement(out), self.get_buffer("limit")
        usual = disagreement.quantile(self.gate).clamp(min=ALWAYS_TRUSTED)
        limit.copy_(limit.lerp(usual, JUDGING_RATE) if limit > 0 else usual)
        error = (out[..., :-1].mean(0) - goal).square().mean(1)
        trusted = disagreement <= limit
        if trusted.any():
            self.get_buffer("error").lerp_(error[trusted].mean().clamp(max=10.0), JUDGING_RATE)
