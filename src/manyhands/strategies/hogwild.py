"""Hogwild: one vector, no lock; every worker applies its gradients to it (Recht et al. 2011).

Reads and writes of workers interleave, number by number. By default a worker's model uses the
shared vector itself: a pull does nothing, and numbers may change during a forward pass. Only large
dense layers in bfloat16 are copied (rounded) at each pull. With `copy` a worker
copies the vector every `sync_every` updates and computes on the copy. Optimizer statistics are
shared, as in A3C (Mnih et al. 2016), or one set per worker. Both are in shared memory, so a
restarted worker continues with them.

It differs from the paper in that gradients are dense: every push changes every number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Ledger, copy, load, mean, saved, shared_slots, total
from manyhands.types import (
    Backend,
    BadRequest,
    Model,
    Options,
    Parameters,
    PlanView,
    State,
    Strategy,
    option,
    restored,
)
from manyhands.types.communication import Sharing


@dataclass(frozen=True)
class Config(Options):
    one_vector: ClassVar[bool] = True
    copy: bool = option(False, "compute on a copy; false: on the shared vector itself")
    statistics: str = option(
        "shared",
        "optimizer statistics: one set for all, or one per worker",
        choices=("shared", "own"),
    )
    sync_every: int = option(1, "with copy: updates between two copies", low=1)

    @property
    def sharing(self) -> Sharing:
        return Sharing(pull_every=self.sync_every if self.copy else 1)

    def check(self, plan: PlanView) -> None:
        """Refuses only what a person has just asked for: an older run may resume with it."""
        if plan.is_from_flag(self, "sync_every") and self.sync_every > 1 and not self.copy:
            raise BadRequest(
                f"{plan.flag(self, 'sync_every')} {self.sync_every}: there is no copy to refresh",
                f"add {plan.flag(self, 'copy')} true, or leave it out",
            )


class Hogwild(Strategy):
    def __init__(
        self,
        config: Config,
        *,
        backend: Backend,
        vector: Tensor,
        parts: Mapping[str, slice],
        optimizer: optim.Config,
        learners: int = 1,
    ) -> None:
        self.config, self.parts, self.optimizer = config, parts, optimizer
        self.ledger = Ledger(backend, learners)
        self.vector, self.pause = backend.share(vector), backend.pause()
        self.updates = backend.allocate((learners,), np.dtype(np.int64))  # their sum is the version
        memories = learners if config.statistics == "own" else 1
        self.slots = [shared_slots(backend, optimizer, vector, parts) for _ in range(memories)]

    def join(self, model: Model, index: int) -> HogwildParameters:
        if not self.config.copy:
            model.live_in(self.vector)
        return HogwildParameters(self, index)

    def optimizers(self, index: int) -> dict[str, optim.PartOptimizer]:
        """The optimizers of one learner. With shared statistics all learners have the first's."""
        slots = self.slots[index % len(self.slots)]
        return {
            part: optim.PartOptimizer(self.optimizer, self.vector[where], slots[part])
            for part, where in self.parts.items()
        }

    def newest(self) -> Tensor:
        return self.vector

    def version(self) -> int:
        return total(self.updates)

    def state(self) -> State:
        each = [saved(self.optimizers(index)) for index in range(len(self.slots))]
        own = {"hogwild": {str(i): one for i, one in enumerate(each)}} if len(each) > 1 else {}
        return {"version": self.version(), "optimizers": mean(each), "own": own}

    def restore(self, vector: Tensor, state: State) -> None:
        self.vector.copy_(vector)
        self.updates[:] = 0
        self.updates[0] = restored.count(state, "version")
        own = state["own"].get("hogwild", {})
        same = len(own) == len(self.slots)
        for index in range(len(self.slots)):
            load(self.optimizers(index), own[str(index)] if same else state["optimizers"])


class HogwildParameters(Parameters):
    def __init__(self, shared: Hogwild, index: int) -> None:
        self._shared, self._index = shared, index
        self._optimizers = shared.optimizers(index)
        self._pulls = 0
        self._version = 0

    def pull(self, model: Model) -> int:
        """A copy has the version at which copying began; some of its numbers may be newer."""
        config = self._shared.config
        self._shared.pause()
        if not config.copy or self._pulls % config.sync_every == 0:
            self._version = total(self._shared.updates)
            if config.copy:
                copy(self._shared.vector, model.vector)
        self._pulls += 1
        return self._version

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        self._shared.pause()
        self._optimizers[part].step(gradient, lr)
        self._shared.ledger.applied(self._index, total(self._shared.updates) - version)
        self._shared.updates[self._index] += 1


make = Hogwild
