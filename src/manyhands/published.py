"""Published: the learners' parameters as actors see them. Two copies and a count, no lock.

One learner writes, into the copy that is not the newest, and then says that it is done. A reader
copies the newest and looks whether the writer has come round to it meanwhile; if so, once more.
A writer killed in the middle leaves the newest as it was, and who follows writes the other anew.
"""

from __future__ import annotations

import copy

import numpy as np
from torch import Tensor

from manyhands.types import Backend, Model

BEGUN, DONE = 0, 1


class Published:
    def __init__(self, backend: Backend, vector: Tensor) -> None:
        self._copies = [backend.share(vector), backend.share(vector)]
        self._counts = backend.allocate((2,), np.dtype(np.int64))
        self._seen = -1  # by this reader

    def reader(self) -> Published:
        """The same, and what its holder has seen of it."""
        return copy.copy(self)

    def publish(self, vector: Tensor) -> None:
        """For one writer."""
        number = int(self._counts[DONE]) + 1
        self._counts[BEGUN] = number
        self._copies[number % 2].copy_(vector)
        self._counts[DONE] = number

    def pull(self, model: Model) -> bool:
        """Makes the model's parameters the newest; False if they are already."""
        if int(self._counts[DONE]) == self._seen:
            return False
        while True:
            number = int(self._counts[DONE])
            model.vector.copy_(self._copies[number % 2])
            if int(self._counts[BEGUN]) <= number + 1:
                self._seen = number
                return True
