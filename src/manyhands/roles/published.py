"""Published weights: the parameters that actors act with, in a double buffer."""

from __future__ import annotations

import copy

from torch import Tensor

from manyhands.roles.double_buffer import DoubleBuffer
from manyhands.types import Backend, Model


class PublishedWeights:
    def __init__(self, backend: Backend, vector: Tensor) -> None:
        self._buffer = DoubleBuffer(backend, (backend.share(vector), backend.share(vector)))
        self._pulled = -1  # the number of the write that this reader has

    def reader(self) -> PublishedWeights:
        """The same weights, for another reader with its own record of what it has pulled."""
        return copy.copy(self)

    def publish(self, vector: Tensor) -> None:
        """For one writer."""
        self._buffer.write(lambda newest: newest.copy_(vector))

    def pull(self, model: Model) -> bool:
        """Copies the newest weights into the model; False if it has them already."""
        if self._buffer.writes == self._pulled:
            return False
        _, self._pulled = self._buffer.read(model.vector.copy_)
        return True
