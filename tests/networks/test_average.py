from __future__ import annotations

import torch
from torch import nn

from manyhands import optim
from manyhands.networks.average import Average


def test_it_is_the_mean_of_the_newest_parameters() -> None:
    network = nn.Linear(1, 1)
    average = Average(network, updates=4)
    for value in range(1, 5):
        nn.init.constant_(network.weight, float(value))
        average.follow()
    mean = next(average.mean.parameters())
    assert float(mean) == 2.5  # of 1 to 4: all count in the beginning
    nn.init.constant_(network.weight, 10.0)
    average.follow()
    assert float(mean) == 2.5 + (10 - 2.5) / 4


def test_the_mean_is_saved_and_is_not_learned() -> None:
    one, other = (Average(nn.Linear(3, 2), updates=9) for _ in range(2))
    for average in (one, other):
        for _ in range(3):
            nn.init.normal_(next(average.network.parameters()))
            average.follow()
    model, copy = optim.FlatModel({"q": one}), optim.FlatModel({"q": other})
    assert len(model.vector) == 8
    copy.load(model.named())
    for mine, theirs in zip(one.mean.parameters(), other.mean.parameters(), strict=True):
        assert torch.equal(mine, theirs)
