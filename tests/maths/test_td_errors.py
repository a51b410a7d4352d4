"""The compiled errors and gradients are those of torch, to the last bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.maths import compiled, losses


@pytest.mark.skipif(compiled.library() is None, reason=compiled.found().why)
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 50), actions=st.integers(1, 9), huber=st.booleans())
def test_the_library_gives_the_bits_of_torch(rows: int, actions: int, huber: bool) -> None:
    torch.manual_seed(rows)
    values, action = 2 * torch.randn(rows, actions), torch.randint(actions, (rows,))
    goal, weight = 3 * torch.randn(rows), torch.rand(rows)
    goal[0] = float("nan")
    loss = losses.huber if huber else losses.half_square
    found = []
    for way in (loss, lambda error: loss(error)):  # torch computes a function that is not known
        errors = losses.td_errors(values, action, goal, way)
        found.append((*errors, errors.by_values(weight)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_the_gradient_is_that_of_autograd() -> None:
    values, action = torch.randn(20, 4, requires_grad=True), torch.randint(4, (20,))
    goal, weight = 2 * torch.randn(20), torch.rand(20)
    value = values.gather(1, action[:, None]).squeeze(1)
    torch.nn.functional.huber_loss(value, goal, reduction="none").dot(weight).backward()
    errors = losses.td_errors(values.detach(), action, goal, losses.huber)
    torch.testing.assert_close(errors.by_values(weight), values.grad)
