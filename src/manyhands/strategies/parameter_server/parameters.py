"""A learner's side: fetching parameters, pushing gradients, dropping outliers."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from manyhands import optim
from manyhands.types import Future, Handle, Model, Parameters

if TYPE_CHECKING:
    from manyhands.strategies.parameter_server import ParameterServer

ANSWER_S = 3600.0  # the supervisor kills and restarts a shard that hangs long before
FULL_S = 0.0002  # between two tries to push into a full slot
TRIES = 500


class ServedParameters(Parameters):
    """A learner's copy of the parameters, and the gradients it has not pushed yet."""

    def __init__(self, server: ParameterServer, model: Model, index: int) -> None:
        self._server, self._row = server, 1 + index
        self._numbers = {part: i for i, part in enumerate(server.parts)}
        self._pulls = self._version = 0
        self._ahead = [0] * server.config.shards  # each shard's version minus ours
        self._answers: list[Future] = []  # to a fetch that is under way
        self._due = False  # whether fresh parameters are to be taken
        self._unpushed: dict[str, GradientSum] = {}  # by part
        self._local = (
            {
                part: optim.PartOptimizer(server.optimizer, model.vector[where])
                for part, where in server.parts.items()
            }
            if max(server.config.push_every, server.config.fetch_every) > 1
            else {}
        )
        self._losses = LossStatistics()

    def pull(self, model: Model) -> int:
        every, how = self._server.config.fetch_every, self._server.fetch
        self._due = self._due or self._pulls % every == 0
        if self._due and how == "read":
            self._read(model)
        elif self._due:
            self._take_if_ready(model, wait=how == "asked" or self._pulls == 0)
        self._pulls += 1
        if how == "ahead" and not self._answers and self._pulls % every == 0:
            self._ask()
        return self._version

    def _read(self, model: Model) -> None:
        """Without a lock, as Hogwild: while a shard steps, some numbers are old and some new."""
        self._set_versions(self._server.versions.rows()[:, 0].tolist())
        for live, where in zip(self._server.live, self._server.slices, strict=True):
            live.read(model.vector[where].numpy())

    def _take_if_ready(self, model: Model, *, wait: bool) -> None:
        """Copies the answers to a fetch, once all have arrived."""
        if not self._answers:
            self._ask()
        if wait or all(future.ready() for future in self._answers):
            self._take(model)

    def _ask(self) -> None:
        """Asks all shards before waiting for any."""
        self._answers = [handle.ask("fetch") for handle in self._server.handles]

    def _take(self, model: Model) -> None:
        versions = []
        for future, where in zip(self._answers, self._server.slices, strict=True):
            slice_, version = future.result(ANSWER_S)
            model.vector[where].copy_(slice_)
            versions.append(int(version))
        self._answers = []
        self._set_versions(versions)

    def _set_versions(self, versions: list[int]) -> None:
        """Versions differ for good after a kill: the shard lost the gradient it was applying."""
        self._version, self._due = min(versions), False
        self._ahead = [version - self._version for version in versions]

    def push(
        self, gradient: Tensor, *, part: str, version: int, lr: float, loss: float = 0.0
    ) -> None:
        deviations = self._server.config.max_deviations
        if deviations and self._losses.is_outlier(loss, deviations):
            self._server.ledger.dropped(self._row)
            return
        if self._local:
            self._local[part].step(gradient, lr)
        every = self._server.config.push_every
        if every == 1:
            self._send(gradient, part, self._of_each(version), lr)
            return
        unpushed = self._unpushed.setdefault(part, GradientSum(self._of_each(version)))
        unpushed.add(gradient)
        if unpushed.gradients == every:
            self._send(unpushed.total, part, unpushed.versions, lr)
            del self._unpushed[part]

    def _of_each(self, version: int) -> list[int]:
        """Each shard's version when ours was this."""
        return [version + ahead for ahead in self._ahead]

    def _send(self, gradient: Tensor, part: str, versions: list[int], lr: float) -> None:
        """Sends each shard its slice. A shard without this part only counts the gradient."""
        whole, server = self._server.parts[part], self._server
        for handle, where, version in zip(server.handles, server.slices, versions, strict=True):
            start, stop = max(where.start, whole.start), min(where.stop, whole.stop)
            if start < stop:
                mine = gradient[start - whole.start : stop - whole.start]
                _tell(handle, "push", mine, self._numbers[part], version, lr)
            else:
                _tell(handle, "count", None, version)


class GradientSum:
    """Gradients to push together. Its versions are those of the first gradient."""

    def __init__(self, versions: list[int]) -> None:
        self.versions, self.gradients = versions, 0
        self.total = torch.zeros(0)

    def add(self, gradient: Tensor) -> None:
        self.total = self.total.add_(gradient) if self.gradients else gradient.clone()
        self.gradients += 1


def _tell(shard: Handle, method: str, vector: Tensor | None, *numbers: float) -> None:
    """Retries until the shard has room, so a learner cannot push faster than shards apply.

    After `TRIES` it also asks. Then the supervisor sees that this process waits, and blames the
    shard if it hangs.
    """
    for _ in range(TRIES):
        if shard.tell(method, vector, *numbers):
            return
        time.sleep(FULL_S)
    while not shard.tell(method, vector, *numbers):
        shard.ask("version").result(ANSWER_S)


class LossStatistics:
    """Running mean and deviation of the loss, to find outliers (Nair et al. 2015).

    An outlier enters the mean as the largest loss that is not one. So one outlier does not spoil
    the statistics, and they adapt when losses stay larger.
    """

    WARMUP = 100  # losses before any is an outlier
    DECAY = 0.99

    def __init__(self) -> None:
        self._mean = self._square = 0.0
        self._seen = 0

    def is_outlier(self, loss: float, deviations: float) -> bool:
        deviation = math.sqrt(max(0.0, self._square - self._mean**2))
        most = self._mean + deviations * deviation if self._seen >= self.WARMUP else math.inf
        size = min(abs(loss), most)
        self._seen += 1
        rate = max(1 / self._seen, 1 - self.DECAY)
        self._mean += rate * (size - self._mean)
        self._square += rate * (size * size - self._square)
        return abs(loss) > most
