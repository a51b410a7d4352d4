"""Regularisers R by name, as proximal operators: what minimizes amount * R(w) + |w - z|^2 / 2."""

from __future__ import annotations

from torch import Tensor, nn

NAMES = ("none", "l2", "l1")


def prox(regulariser: str, vector: Tensor, amount: float) -> Tensor:
    """R(w) is |w|^2 / 2 for l2, the sum of absolute values for l1."""
    if regulariser == "l1":
        return nn.functional.softshrink(vector, amount)
    if regulariser == "l2":
        return vector / (1.0 + amount)
    return vector
