from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from manyhands.maths import policies

PROBABILITIES = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


def test_epsilon_greedy_explores_row_by_row() -> None:
    values, rng = np.array([[0, 1, 0, 0]] * 3), np.random.default_rng(1)
    epsilon = np.array([0.0, 0.4, 1.0], np.float32)
    drawn = [policies.epsilon_greedy(lambda: values, 4, epsilon, rng) for _ in range(4000)]
    other = (np.array(drawn) != 1).mean(0)  # a random action is the greedy one in a quarter
    np.testing.assert_allclose(other, [0, 0.3, 0.75], atol=0.03)
    assert drawn[0].dtype == np.int32


def test_epsilon_greedy_asks_for_no_values_if_all_rows_explore() -> None:
    def values() -> np.ndarray:
        raise AssertionError("not needed")

    action = policies.epsilon_greedy(values, 4, np.ones(5), np.random.default_rng(0))
    assert action.shape == (5,)


def test_sampled_follows_the_softmax_and_greedy_the_largest() -> None:
    logits, rng = np.log(np.tile(PROBABILITIES, (40_000, 1))), np.random.default_rng(0)
    often = np.bincount(policies.sampled(logits, np.ones(40_000), rng), minlength=4) / 40_000
    np.testing.assert_allclose(often, PROBABILITIES, atol=0.01)
    assert (policies.sampled(logits, np.zeros(40_000), rng) == 3).all()
    half = policies.sampled(logits, np.full(40_000, 0.5, np.float32), rng)
    assert np.mean(half == 3) == pytest.approx(0.5 + 0.5 * 0.4, abs=0.01)


def test_log_probabilities_while_acting_and_while_learning() -> None:
    logits = np.log(PROBABILITIES)[None].repeat(4, 0) + np.array([[0], [5], [-5], [90]], np.float32)
    action = np.arange(4)
    terms = policies.policy_terms(torch.from_numpy(logits), torch.from_numpy(action))
    for found in (policies.log_probability(logits, action), terms.log_prob.numpy()):
        np.testing.assert_allclose(found, np.log(PROBABILITIES), rtol=1e-4)
    entropy = -sum(p * math.log(p) for p in PROBABILITIES.tolist())
    np.testing.assert_allclose(terms.entropy.numpy(), [entropy] * 4, rtol=1e-4)
