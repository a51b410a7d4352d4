"""Published weights: the parameters that actors act with, as a notice of the first learner."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from manyhands.types import Backend, Model


class PublishedWeights:
    def __init__(self, backend: Backend, vector: Tensor) -> None:
        self._notice = backend.notice(vector.detach().cpu().numpy())
        self._pulled = -1  # the number of the post that this reader has

    def reader(self) -> PublishedWeights:
        """The same weights, for another reader with its own record of what it has pulled."""
        return copy.copy(self)

    def publish(self, vector: Tensor) -> None:
        """For one writer."""
        self._notice.post(vector.detach().cpu().numpy())

    def pull(self, model: Model) -> bool:
        """Copies the newest weights into the model; False if it has them already."""
        if self._notice.number() == self._pulled:
            return False
        if model.vector.is_cpu:
            self._pulled = self._notice.read(model.vector.numpy())
        else:
            newest = torch.empty(model.vector.shape)
            self._pulled = self._notice.read(newest.numpy())
            model.vector.copy_(newest)
        return True
