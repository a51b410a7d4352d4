"""Published weights: the parameters that actors act with, as a notice of the first learner."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from manyhands.types import Backend, Model


class PublishedWeights:
    def __init__(self, backend: Backend, vector: Tensor) -> None:
        self._learned = np.zeros(1, np.int64)
        self._notice = backend.notice(vector.detach().cpu().numpy(), self._learned)
        self._pulled = -1  # the number of the post that this reader has

    @property
    def learned(self) -> int:
        """How many updates the learners had made when this reader's weights were published."""
        return int(self._learned[0])

    def reader(self) -> PublishedWeights:
        """The same weights, for another reader with its own record of what it has pulled."""
        other = copy.copy(self)
        other._learned = self._learned.copy()
        return other

    def publish(self, vector: Tensor, learned: int = 0) -> None:
        """For one writer. `learned`: updates that the learners have made by now."""
        self._notice.post(vector.detach().cpu().numpy(), np.array([learned]))

    def pull(self, model: Model) -> bool:
        """Copies the newest weights into the model; False if it has them already."""
        if self._notice.number() == self._pulled:
            return False
        if model.vector.is_cpu:
            self._pulled = self._notice.read(model.vector.numpy(), self._learned)
        else:
            newest = torch.empty(model.vector.shape)
            self._pulled = self._notice.read(newest.numpy(), self._learned)
            model.vector.copy_(newest)
        return True
