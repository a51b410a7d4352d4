from __future__ import annotations

import pytest
import torch

from manyhands.maths import losses


def test_huber_is_half_the_square_up_to_one_and_linear_beyond() -> None:
    loss, slope = losses.huber(torch.tensor([0.5, -1.0, 3.0, -100.0]))
    assert loss.tolist() == [0.125, 0.5, 2.5, 99.5]
    assert slope.tolist() == [0.5, -1.0, 1.0, -1.0]


def test_clipping_stops_a_ratio_that_moved_far_enough() -> None:
    log_ratio = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.1]).log().requires_grad_()
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    loss, slope, clipped = losses.clipped_objective(log_ratio, advantage, 0.2)
    loss.sum().backward()
    assert log_ratio.grad is not None
    expected = [0.0, 2.0, -0.5, 0.0, -1.1]
    assert log_ratio.grad.tolist() == slope.tolist() == pytest.approx(expected)
    assert clipped.tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("samples", [6, 1])
def test_normalized(samples: int) -> None:
    advantage = 5 + 3 * torch.randn(samples, generator=torch.Generator().manual_seed(2))
    found = losses.normalized(advantage)
    if samples == 1:
        assert torch.equal(found, advantage)
    else:
        assert float(found.mean()) == pytest.approx(0, abs=1e-5)
        assert float(found.std()) == pytest.approx(1, rel=1e-5)
