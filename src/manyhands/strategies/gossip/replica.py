"""A learner's access to its own replica, and to its neighbours'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from manyhands.maths import graphs
from manyhands.types import Model, Parameters

if TYPE_CHECKING:
    from manyhands.strategies.gossip import Gossip


class Replica(Parameters):
    """For a learner whose neighbours' replicas, or copies of them, are on its node."""

    def __init__(self, shared: Gossip, index: int) -> None:
        self._shared, self._index = shared, index
        self._neighbours = graphs.neighbours(shared.config.topology, shared.learners, index)
        self._chance = shared.chance(index)
        self._steps = shared.optimizers(index)
        self._meetings = self._own = 0  # averages before the pull; own averages since

    def pull(self, model: Model) -> int:
        """Averages made while the learner computes go to another vector."""
        vector, updates, self._meetings = self._shared.use(self._index)
        self._own = 0
        if vector is not model.vector:
            model.live_in(vector)
        return updates

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,  # noqa: ARG002  (only its own updates count)
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        self._meet()
        meetings = self._shared.apply(self._index, self._steps, gradient, part, lr)
        self._shared.ledger.applied(self._index, meetings - self._own - self._meetings)

    def _meet(self) -> None:
        if self._neighbours:
            self._shared.meet(self._index, self._chance.choice(self._neighbours))
            self._own += 1
