"""Where workers run and how they talk; knows nothing of reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Alone:
    """A group of one: its average is itself."""

    def reduce(self, vector: Tensor) -> Tensor:
        return vector

    def exchange(self, vector: Tensor, peer: int) -> Tensor:
        if peer != 0:
            raise IndexError(f"a group of one has no member {peer}")
        return vector

    def members(self) -> frozenset[int]:
        return frozenset({0})
