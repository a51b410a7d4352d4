from __future__ import annotations

import pytest
import torch
from torch import nn

from manyhands.networks.heads import DuelingNetwork, QNetwork, features_of


def test_dueling_against_one_sample_and_action_at_a_time() -> None:
    torch.manual_seed(0)
    made = DuelingNetwork(nn.Linear(3, 8), 8, 5)
    observation = torch.randn(4, 3)
    with torch.no_grad():
        got = made(observation)
        for i in range(4):
            features = made.torso(observation[i])
            value = float(made.value(features))
            advantages = made.advantage(features).tolist()
            for action in range(5):
                expected = value + advantages[action] - sum(advantages) / 5
                assert float(got[i, action]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_mean_of_a_dueling_network_is_its_value() -> None:
    made, observation = DuelingNetwork(nn.Linear(3, 8), 8, 5), torch.randn(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(
            made(observation).mean(1), made.value(made.torso(observation))[:, 0]
        )


@pytest.mark.parametrize("head", [QNetwork, DuelingNetwork])
def test_every_parameter_of_a_head_learns(head: type) -> None:
    torch.manual_seed(0)
    made = head(nn.Linear(3, 1), 1, 2) if head is QNetwork else head(nn.Linear(3, 8), 8, 2)
    values = made(torch.randn(16, 3))
    assert values.shape == (16, 2)
    (values[:, 0] ** 2).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in made.parameters())


def test_features_are_found_by_trying() -> None:
    assert features_of(nn.Linear(3, 7), (3,), torch.float32) == 7
