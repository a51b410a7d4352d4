"""Sampling: the rows that one draw of a replay returns, and the seam for choosing them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from manyhands.types import Array, Demand, State


class Sample(NamedTuple):
    """Rows of one draw, what follows each of them, and the weight of each in the loss."""

    rows: Array  # [b] int64
    reward: Array  # [b] float32, the n-step sum
    discount: Array  # [b] float32, of the bootstrap
    bootstrap: Array  # [b] int64, the row to bootstrap from
    weight: Array  # [b] float32


class Sampler(Protocol):
    """Chooses the rows of a draw. The rest of a replay is the same for every sampler."""

    def sample(
        self, demand: Demand, size: int, steps_seen: int, *, again: bool = False
    ) -> Sample | None:
        """Returns `size` rows that start a transition, or None if there are none.

        `again`: these rows replace torn rows of the last sample.
        """

    def report(self, rows: Array, priorities: Tensor) -> None: ...

    def state(self) -> State:
        """What a checkpoint keeps beside the lanes."""

    def restore(self, state: State) -> None:
        """Called after the lanes are restored. An empty state starts from nothing."""
