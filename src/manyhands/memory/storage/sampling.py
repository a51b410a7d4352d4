"""Sampling: the rows that one draw of a replay returns, and the protocol for choosing them."""

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


AT_ONCE = 8  # batches drawn together: one call of everything for all of them


class Sampler(Protocol):
    """Chooses the rows of a draw. The rest of a replay is the same for every sampler.

    Implementations inherit from this class.
    """

    at_once: int = AT_ONCE

    def sample(
        self, demand: Demand, size: int, steps_seen: int, *, again: bool = False
    ) -> Sample | None:
        """Returns `size` rows that start a transition, or None if there are none.

        `again`: these rows replace torn rows of the last sample.
        """

    def report(self, rows: Array, priorities: Tensor) -> None:
        """The absolute TD errors of rows that were learned from."""

    def state(self) -> State:
        """What a checkpoint holds beside the rows and `SharedPriorities`."""
        return {}

    def restore(self, state: State) -> None:
        """After lanes and priorities were restored. Checkpoints may have no state of it."""
