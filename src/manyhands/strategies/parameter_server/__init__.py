"""Parameter server: the vector is cut into shards, each a process that holds and steps its slice.

This is Downpour SGD (Dean et al. 2012; Ong, Chavez and Hong 2015 for deep Q-learning). A learner
fetches parameters every `fetch_every` updates and pushes the sum of its gradients every
`push_every`. In between it applies its own gradients to its own copy, with an optimizer like the
shards'; the paper uses plain SGD there. Gradients not pushed when a learner ends are lost. Two
values of `fetch` avoid waiting for a shard. `ahead`: a learner asks one update early. `read`: it
reads the shards' memory.

Shards are independent. Each has its own optimizer and applies gradients in the order of arrival.
From Gorila (Nair et al. 2015): a shard drops a gradient that is too stale (`max_staleness`), and a
learner drops one whose loss is an outlier (`max_deviations`). A push is one update. Each shard
drops its own slice. Only the first shard counts, so that a gradient is counted once.

With `transport` "queue" every message is pickled and goes through a queue. Stone and Sachdev (2019)
found this too slow; it is here as a baseline.

Slices and optimizer states are in shared memory, so a restarted shard continues with both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Ledger
from manyhands.strategies.parameter_server.parameters import ANSWER_S, ServedParameters
from manyhands.strategies.parameter_server.shard import Shard, shard_slices
from manyhands.types import Backend, Handle, Model, Options, State, Strategy, option, restored
from manyhands.types.communication import Sharing


@dataclass(frozen=True)
class Config(Options):
    shards: int = option(1, "processes that each hold a slice of the parameters", low=1, high=64)
    push_every: int = option(1, "gradients that a learner sums up before it pushes", low=1)
    fetch_every: int = option(1, "updates between two fetches", low=1)
    fetch: str = option(
        "asked",
        "asked: ask and wait; ahead: ask one update early and use the answer once it is there; "
        "read: read the shards' memory without asking (with transport queue: asked)",
        choices=("asked", "ahead", "read"),
    )
    max_staleness: int = option(0, "drop gradients staler than this many versions; 0: never", low=0)
    max_deviations: float = option(
        0.0,
        "drop gradients whose loss is this many deviations above its mean; 0: never",
        low=0,
    )
    transport: str = option(
        "slots",
        "slots: through shared memory; queue: pickled, through a queue",
        choices=("slots", "queue"),
    )

    @property
    def hosted_processes(self) -> int:
        return self.shards

    @property
    def sharing(self) -> Sharing:
        return Sharing(
            shards=self.shards,
            asks=self.fetch == "asked",
            push_every=self.push_every,
            pull_every=self.fetch_every,
            sends="shards" if self.transport == "slots" else "nothing",
        )


class ParameterServer(Strategy):
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
        reads_past_queue = (config.transport, config.fetch) == ("queue", "read")
        self.fetch = "asked" if reads_past_queue else config.fetch
        self.slices = shard_slices(vector.numel(), config.shards, parts)
        self.ledger = Ledger(backend, 1 + learners)  # the first row is the shards'
        numbers = vector.detach().cpu().numpy()
        self.versions = backend.table(config.shards, 1, np.dtype(np.int64))
        self.live = [
            backend.live(numbers[where], self.versions, shard)
            for shard, where in enumerate(self.slices)
        ]
        self._steps = [self._optimizers(backend, shard) for shard in range(config.shards)]
        self.handles = [self._host(backend, index) for index in range(config.shards)]

    def _optimizers(self, backend: Backend, shard: int) -> list[optim.PartOptimizer | None]:
        """One for each part; None if the shard holds nothing of that part."""
        optimizers: list[optim.PartOptimizer | None] = []
        whole = torch.from_numpy(self.live[shard].vector)
        for part in self.parts.values():
            inside = self._inside(shard, part)
            if inside.start >= inside.stop:
                optimizers.append(None)
                continue
            vector = whole[inside]
            slots = optim.new_slots(self.optimizer, vector)
            shared = {name: backend.share(slot) for name, slot in slots.items()}
            optimizers.append(optim.PartOptimizer(self.optimizer, vector, shared))
        return optimizers

    def _inside(self, shard: int, part: slice) -> slice:
        """Where in the shard's slice this part lies; empty if it does not."""
        where = self.slices[shard]
        start, stop = max(where.start, part.start), min(where.stop, part.stop)
        return slice(start - where.start, stop - where.start)

    def _host(self, backend: Backend, index: int) -> Handle:
        where, steps = self.slices[index], self._steps[index]
        vector, versions = torch.from_numpy(self.live[index].vector), self.versions
        ledger, stale = self.ledger, self.config.max_staleness
        return backend.host(
            lambda: Shard(index, vector, steps, versions, ledger, stale),
            name="shard",
            numbers=where.stop - where.start,
            transport=self.config.transport,
        )

    def version(self) -> int:
        """The version that every shard has reached."""
        return int(self.versions.rows().min())

    def for_learners(self) -> ParameterServer:
        """Without the optimizers, and without the slices if they are asked for."""
        made = copy.copy(self)
        made._steps = []
        made.live = self.live if self.fetch == "read" else []
        return made

    def join(self, model: Model, index: int) -> ServedParameters:
        return ServedParameters(self, model, index)

    def newest(self) -> Tensor:
        """Includes every gradient pushed so far: a shard applies those before it answers.

        It uses the shards' answers, because a backend may have no shared memory.
        """
        answers = [handle.ask("fetch") for handle in self.handles]
        gathered = torch.empty(self.slices[-1].stop)
        for future, where in zip(answers, self.slices, strict=True):
            gathered[where].copy_(future.result(ANSWER_S)[0])
        return gathered

    def state(self) -> State:
        """The shards' optimizers are joined: a part's state does not depend on how it was cut."""
        self.newest()
        optimizers = {name: self._joined(number) for number, name in enumerate(self.parts)}
        return {"version": self.version(), "optimizers": optimizers, "own": {}}

    def _joined(self, part: int) -> State:
        states = [step.state() for steps in self._steps if (step := steps[part]) is not None]
        return {
            name: np.concatenate([state[name] for state in states]) if first.ndim else first
            for name, first in states[0].items()
        }

    def restore(self, vector: Tensor, state: State) -> None:
        numbers, version = vector.cpu().numpy(), restored.count(state, "version")
        for shard, (where, steps) in enumerate(zip(self.slices, self._steps, strict=True)):
            np.copyto(self.live[shard].vector, numbers[where])
            self.versions.row(shard)[0] = version
            for (name, part), step in zip(self.parts.items(), steps, strict=True):
                if step is not None:
                    inside = slice(max(where.start - part.start, 0), where.stop - part.start)
                    step.restore(_cut(state["optimizers"].get(name, {}), inside))


def _cut(state: State, where: slice) -> State:
    """A part's optimizer state, for a slice of the part. Single numbers are the same for all."""
    return {name: array[where] if array.ndim else array for name, array in state.items()}


make = ParameterServer
