"""All-reduce: gradients are averaged over all learners, and every replica takes the same step.

Replicas are equal bit for bit: same average, same optimizer, same optimizer state. The gradient is
clipped after the average (`clips`). The learning rate is the first member's. An averaged step is
one version. Workers run `in_step`: each takes an equal share of the agent steps and assumes that
the others have taken as many. So a run repeats bit for bit with one torch thread.

A killed worker is left out of the average. Its replacement acts with a copy of another learner's
parameters until its first update is due. Then it joins between two steps, with the parameters and
optimizer state of another learner, and drops its own gradient. If only one replica is up to date,
it is copied before it takes a step. If every replica is lost in one step, the run fails.

If an algorithm trains several parts in turn, members may push different parts in one round. Each
part is then averaged over the members that pushed it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Layout, Ledger, load, saved
from manyhands.types import (
    Average,
    Backend,
    Failure,
    Model,
    Options,
    Parameters,
    State,
    Strategy,
    restored,
)
from manyhands.types.communication import Sharing

TRIES, NAP_S = 2000, 0.001  # to find a replica that no learner is changing


@dataclass(frozen=True)
class Config(Options):
    """No options."""

    in_step: ClassVar[bool] = True
    sharing = Sharing(in_step=True, sends="sum")


class AllReduce(Strategy):
    in_step = True

    def __init__(
        self,
        config: Config,  # noqa: ARG002
        *,
        backend: Backend,
        vector: Tensor,
        parts: Mapping[str, slice],
        optimizer: optim.Config,
        learners: int = 1,
    ) -> None:
        self.parts, self.optimizer, self.numbers = parts, optimizer, vector.numel()
        self.ledger = Ledger(backend, learners)
        self._layout = Layout(optimizer, vector, parts)
        first = self._layout.first.repeat(learners + 1, 1)  # the last: a spare
        self.replicas = backend.share(first, elsewhere=0)
        # Per replica: twice its version, plus one while a learner changes it.
        self.stamps = backend.allocate((learners + 1,), np.dtype(np.int64), elsewhere=-1)
        self.group = backend.group(learners, vector.numel(), rows=self.replicas, stamps=self.stamps)

    def join(self, model: Model, index: int) -> Replica:
        model.live_in(self.vector(index))
        return Replica(self, index)

    def vector(self, index: int) -> Tensor:
        return self._layout.vector(self.replicas[index])

    def optimizers(self, index: int) -> dict[str, optim.PartOptimizer]:
        return self._layout.optimizers(
            self.vector(index), self._layout.memory(self.replicas[index])
        )

    def copy_newest(self) -> tuple[Tensor, int]:
        """A complete copy of the newest replica, and its stamp."""
        for _ in range(TRIES):
            stamps = self.stamps.copy()
            complete = np.where(stamps % 2 == 0, stamps, -1)
            index = int(complete.argmax())
            if complete[index] // 2 == stamps.max() // 2:
                copy = self.replicas[index].clone()
                if self.stamps[index] == stamps[index]:
                    return copy, int(stamps[index])
            time.sleep(NAP_S)
        raise Failure(
            "every replica was lost in the middle of a step",
            "resume the run from its last checkpoint",
        )

    def keep_spare(self, index: int) -> None:
        """Copies this replica before its step, if no other is as new."""
        stamp = int(self.stamps[index])
        if (np.delete(self.stamps, index) >= stamp).any():
            return
        self.stamps[-1] |= 1
        self.replicas[-1].copy_(self.replicas[index])
        self.stamps[-1] = stamp

    def newest(self) -> Tensor:
        return self._layout.vector(self.copy_newest()[0])

    def version(self) -> int:
        return int(self.stamps.max()) // 2

    def state(self) -> State:
        row, stamp = self.copy_newest()
        steps = self._layout.optimizers(self._layout.vector(row), self._layout.memory(row))
        return {"version": stamp // 2, "optimizers": saved(steps), "own": {}}

    def restore(self, vector: Tensor, state: State) -> None:
        self.vector(0).copy_(vector)
        load(self.optimizers(0), state["optimizers"])
        self.replicas[1:] = self.replicas[0].clone()
        self.stamps[:] = 2 * restored.count(state, "version")


class Replica(Parameters):
    """One learner's replica. The model's vector is part of it."""

    clips = True

    def __init__(self, shared: AllReduce, index: int) -> None:
        self._shared, self._index = shared, index
        self._numbers = {part: number for number, part in enumerate(shared.parts)}
        self._optimizers = shared.optimizers(index)
        if shared.group.join(index, self._catch_up):
            self._catch_up()  # a restarted worker acts with this until its first push

    def _catch_up(self) -> None:
        row, stamp = self._shared.copy_newest()
        self._shared.stamps[self._index] |= 1
        self._shared.replicas[self._index].copy_(row)
        self._shared.stamps[self._index] = stamp

    def pull(self, model: Model) -> int:  # noqa: ARG002  (its vector is the replica)
        return int(self._shared.stamps[self._index]) // 2

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        padded = self._pad(gradient, part)
        average = self._shared.group.reduce(padded, self._numbers[part], lr)
        now = int(self._shared.stamps[self._index]) // 2
        if average.vector is None:  # all members have just joined
            return
        self._shared.keep_spare(self._index)
        self._shared.stamps[self._index] = 2 * now + 1
        stepped = [self._step(average, name, number) for name, number in self._numbers.items()]
        self._shared.stamps[self._index] = 2 * (now + any(stepped))
        if any(stepped) and self._index in average.numbers:
            self._shared.ledger.applied(self._index, now - version)
        else:  # this learner joined in this step, or no part took a step
            self._shared.ledger.dropped(self._index)

    def _pad(self, gradient: Tensor, part: str) -> Tensor:
        """Pads with zeros to the whole vector: others may push gradients of other parts."""
        if len(self._numbers) == 1:
            return gradient
        whole = torch.zeros(self._shared.numbers)
        whole[self._shared.parts[part]] = gradient
        return whole

    def _step(self, average: Average, part: str, number: int) -> bool:
        """Steps one part; False if no step was taken. A sum of finite gradients may overflow."""
        rates = [lr for pushed, lr in average.numbers.values() if pushed == number]
        if not rates or average.vector is None:
            return False
        mean = average.vector[self._shared.parts[part]]
        if len(rates) < len(average.numbers):
            mean *= len(average.numbers) / len(rates)
        if not math.isfinite(optim.clip(mean, self._shared.optimizer.clip_norm)):
            return False
        self._optimizers[part].step(mean, rates[0])
        return True


make = AllReduce
