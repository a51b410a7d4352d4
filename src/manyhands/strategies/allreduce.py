"""All-reduce: gradients are averaged over all learners, and every replica takes the same step.

Replicas are equal bit for bit: same average, same optimizer, same memory of it. The gradient is
clipped after the average (`clips`), the learning rate is that of the first member. One version for
each averaged step. Workers go `in_step`: each takes its share of the steps asked for, and counts on
the others to be where it is; so a run repeats bit for bit with one torch thread.

A worker that is killed is missing from the average; its follower acts with a copy of a peer's
parameters until its memory is due, then comes in between two steps with a peer's parameters and
optimizer state, giving up the gradient it came with. Who is alone with what it knows, because the
others are dead, behind or done, keeps a spare copy of it while it steps. If every replica was lost
in the middle of one step there is nothing whole to go on with, and the run says so.

Where an algorithm trains several parts in turn, members may push different ones in one round: each
part is then averaged over those who pushed it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Layout, Ledger, load, saved
from manyhands.types import Average, Backend, Failure, Model, State

TRIES, NAP_S = 2000, 0.001  # to find a replica that is not just being changed


@dataclass(frozen=True)
class Config:
    """Nothing to choose."""


class AllReduce:
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
        self.group = backend.group(learners, vector.numel())
        self._layout = Layout(optimizer, vector, parts)
        self.replicas = backend.share(self._layout.first.repeat(learners + 1, 1))  # the spare last
        # Of each replica twice its version, and one more while it is being changed.
        self.stamps = backend.allocate((learners + 1,), np.dtype(np.int64))

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
        """The newest replica, all of it, and its stamp; never an older one."""
        for _ in range(TRIES):
            stamps = self.stamps.copy()
            whole = np.where(stamps % 2 == 0, stamps, -1)
            index = int(whole.argmax())
            if whole[index] // 2 == stamps.max() // 2:
                copy = self.replicas[index].clone()
                if self.stamps[index] == stamps[index]:
                    return copy, int(stamps[index])
            time.sleep(NAP_S)
        raise Failure(
            "every replica was lost in the middle of a step",
            "resume the run: it goes on from its last checkpoint",
        )

    def keep_spare(self, index: int) -> None:
        """Before a step that changes the only replica which knows as much."""
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
        return {"version": stamp // 2, "optimizers": saved(steps)}

    def restore(self, vector: Tensor, state: State) -> None:
        self.vector(0).copy_(vector)
        load(self.optimizers(0), state["optimizers"])
        self.replicas[1:] = self.replicas[0].clone()
        self.stamps[:] = 2 * state["version"]


class Replica:
    """One learner's: the model's vector lies in it."""

    clips = True

    def __init__(self, shared: AllReduce, index: int) -> None:
        self._shared, self._index = shared, index
        self._numbers = {part: number for number, part in enumerate(shared.parts)}
        self._optimizers = shared.optimizers(index)
        if shared.group.join(index, self._catch_up):
            self._catch_up()  # to act with until it comes in

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
        given = self._spread(gradient, part)
        average = self._shared.group.reduce(given, self._numbers[part], lr)
        now = int(self._shared.stamps[self._index]) // 2
        if average.vector is None:  # all are new here
            return
        self._shared.keep_spare(self._index)
        self._shared.stamps[self._index] = 2 * now + 1
        stepped = [self._step(average, name, number) for name, number in self._numbers.items()]
        self._shared.stamps[self._index] = 2 * (now + any(stepped))
        if any(stepped) and self._index in average.numbers:
            self._shared.ledger.applied(self._index, now - version)
        else:  # it came in with this step, or that was none
            self._shared.ledger.dropped(self._index)

    def _spread(self, gradient: Tensor, part: str) -> Tensor:
        """In its place among zeros: others may have gradients of other parts."""
        if len(self._numbers) == 1:
            return gradient
        whole = torch.zeros(self._shared.numbers)
        whole[self._shared.parts[part]] = gradient
        return whole

    def _step(self, average: Average, part: str, number: int) -> bool:
        """Whether there was one: gradients may be finite each, but not their sum."""
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
