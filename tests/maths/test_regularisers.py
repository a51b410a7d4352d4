from __future__ import annotations

import pytest
import torch
from torch import Tensor

from manyhands.maths.regularisers import NAMES, prox

AMOUNT = 0.3


def cost(regulariser: str, w: Tensor, z: Tensor) -> Tensor:
    penalty = {"none": 0 * w, "l2": w.square() / 2, "l1": w.abs()}[regulariser]
    return AMOUNT * penalty + (w - z).square() / 2


@pytest.mark.parametrize("regulariser", NAMES)
def test_it_is_the_minimizer(regulariser: str) -> None:
    grid = torch.arange(-3000, 3001, dtype=torch.float64) / 1000
    for z in torch.tensor([-2.0, -0.3, -0.1, 0.0, 0.2, 0.3, 1.3], dtype=torch.float64):
        best = grid[cost(regulariser, grid, z).argmin()]
        found = prox(regulariser, z.reshape(1), AMOUNT)
        assert found.item() == pytest.approx(best.item(), abs=1e-3)


def test_l1_makes_small_numbers_exactly_zero() -> None:
    assert prox("l1", torch.tensor([-0.2, 0.1, 0.5]), AMOUNT)[:2].tolist() == [0.0, 0.0]
