"""Policies: which action follows from values or logits, and how likely it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from manyhands.types import Array


def epsilon_greedy(
    values: Callable[[], Array], actions: int, epsilon: Array, rng: np.random.Generator
) -> Array:
    """The best action of each row, or with probability `epsilon` of that row a random one.

    Calls `values` only if at least one row is greedy.
    """
    explores = rng.random(len(epsilon)) < epsilon
    exploring = np.count_nonzero(explores)
    if exploring == len(explores):
        return rng.integers(actions, size=exploring, dtype=np.int32)
    action: Array = values().argmax(1).astype(np.int32)
    if exploring:
        action[explores] = rng.integers(actions, size=exploring)
    return action


def sampled(logits: Array, exploration: Array, rng: np.random.Generator) -> Array:
    """Samples each row from its softmax with probability `exploration`, else takes the likeliest.

    The largest logit after adding Gumbel noise is a sample of the softmax, which is not computed.
    """
    noise: Array = rng.gumbel(size=logits.shape)
    noise *= (rng.random(len(logits)) < exploration)[:, None]
    action: Array = (logits + noise).argmax(1).astype(np.int32)
    return action


def log_probability(logits: Array, action: Array) -> Array:
    """The log-probability of each row's action, for acting: arrays, no gradient."""
    shifted = logits - logits.max(1, keepdims=True)
    taken = shifted[np.arange(len(action)), action]
    log_prob: Array = taken - np.log(np.exp(shifted).sum(1))
    return log_prob


class PolicyTerms(NamedTuple):
    """What a policy-gradient loss is made of, for learning: tensors, without a graph."""

    log_probs: Tensor  # [b, actions]
    log_prob: Tensor  # [b] of the action taken
    entropy: Tensor  # [b]

    def gradient(self, action: Tensor, by_log_prob: Tensor, by_entropy: Tensor) -> Tensor:
        """The gradient of a loss by the logits, from its gradients by the other two.

        With probabilities p, the log-probability of action a grows by 1[a] - p, and the entropy H
        by -p (log p + H).
        """
        falls = (self.log_probs + self.entropy[:, None]) * by_entropy[:, None]
        gradient = self.log_probs.exp() * (-by_log_prob[:, None] - falls)
        return gradient.scatter_add_(1, action[:, None], by_log_prob[:, None])


def policy_terms(logits: Tensor, action: Tensor) -> PolicyTerms:
    log_probs = F.log_softmax(logits, 1)
    log_prob = log_probs.gather(1, action[:, None]).squeeze(1)
    return PolicyTerms(log_probs, log_prob, -(log_probs.exp() * log_probs).sum(1))
