"""Parameter server: the vector is cut into shards, each a process that holds and steps its slice.

This is Downpour SGD (Dean et al. 2012; Ong, Chavez and Hong 2015 for deep Q-learning): a worker
fetches every `fetch_every` updates, pushes what it accumulated every `push_every`, and applies its
own gradients to its own copy in between, by an optimizer like the shards' (the paper's workers
take a plain step); what it has not pushed when it ends is lost, as if it had been killed. Where
nobody is to wait for a shard, parameters are asked for one update `ahead`, or `read` in the shards'
own memory while they write it. Shards know nothing of each other and apply what arrives in the
order of arrival, each with its own optimizer. From Gorila (Nair et al. 2015): a gradient computed
too many versions ago is dropped (`max_staleness`), by each shard on its own account; and so is one
whose loss is an outlier (`max_deviations`).

What is pushed together is one update. The first shard counts staleness and drops for all, so that
they are counted once.

With `transport` "queue" everything is pickled and goes through a queue, as the authors of "Analysis
of Concurrent RL Algorithms" had it and found too slow: the same maths, to measure slots against.

A slice and its optimizer's memory lie where the supervisor sees them: a shard that is killed is
made anew and goes on with both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Ledger, copy, load, saved
from manyhands.types import Array, Backend, BadRequest, Future, Handle, Model, State, knob

ANSWER_S = 3600.0  # a shard that hangs is killed and back long before; that is its supervisor's
LINE = 64  # numbers
FULL_S = 0.0002  # between two tries to push into a full slot
TRIES = 500
FIRST = 0  # of the shards


@dataclass(frozen=True)
class Config:
    shards: int = knob(1, "processes among which the vector is cut", low=1, high=64)
    push_every: int = knob(1, "updates whose gradients are pushed together, summed", low=1)
    fetch_every: int = knob(1, "updates between two fetches", low=1)
    fetch: str = knob(
        "asked",
        "asked: and waited for; ahead: asked for one update before, and used once they are there; "
        "read: where the shards keep them (through a queue: asked)",
        choices=("asked", "ahead", "read"),
    )
    max_staleness: int = knob(0, "versions beyond which a gradient is dropped; 0: never", low=0)
    max_deviations: float = knob(
        0.0,
        "of the loss above its running mean beyond which a gradient is dropped; 0: never",
        low=0,
    )
    transport: str = knob(
        "slots",
        "how gradients and parameters travel: slots in shared memory, or pickled through a queue",
        choices=("slots", "queue"),
    )


class Shard:
    """One slice, in a process of its own. Everything that must survive it is shared."""

    def __init__(
        self,
        index: int,
        vector: Tensor,
        optimizers: list[optim.PartOptimizer | None],
        version: Array,
        ledger: Ledger,
        max_staleness: int,
    ) -> None:
        self._index, self._vector, self._version = index, vector, version
        self._optimizers = optimizers
        self._ledger, self._max_staleness = ledger, max_staleness

    def push(self, gradient: Tensor, part: float, version: float, lr: float) -> None:
        optimizer = self._optimizers[int(part)]
        if optimizer is not None and not self._is_too_old(version):
            optimizer.step(gradient, lr)
        self.passed(version)

    def passed(self, version: float) -> None:
        """A gradient came by; of another shard's parts, perhaps. Counted once it is applied."""
        if self._is_too_old(version):
            self._count(self._ledger.dropped)
            return
        self._count(partial(self._ledger.applied, staleness=self._staleness(version)))
        self._version[self._index] += 1

    def _is_too_old(self, version: float) -> bool:
        return 0 < self._max_staleness < self._staleness(version)

    def _staleness(self, version: float) -> int:
        return self.come_to() - int(version)

    def _count(self, count: Callable[[int], None]) -> None:
        if self._index == FIRST:
            count(FIRST)

    def fetch(self) -> tuple[Tensor, int]:
        return self._vector, self.come_to()

    def come_to(self) -> int:
        return int(self._version[self._index])


def cut(numbers: int, shards: int, parts: Mapping[str, slice]) -> list[slice]:
    """Slices of about equal length, cut a multiple of 64 numbers from a part's beginning.

    Vector instructions take 16 numbers at once and what is left one by one, rounding differently:
    only so are k shards one shard to the last bit.
    """
    edges = [0]
    for wanted in np.linspace(0, numbers, shards + 1).astype(int)[1:-1].tolist():
        start = max(part.start for part in parts.values() if part.start <= wanted)
        edges.append(max(edges[-1], start + (wanted - start) // LINE * LINE))
    return [slice(a, b) for a, b in pairwise([*edges, numbers])]


def cut_to_hold_some(numbers: int, shards: int, parts: Mapping[str, slice]) -> list[slice]:
    """Refuses shards with nothing to hold."""
    ways = {most: cut(numbers, most, parts) for most in range(shards, 0, -1)}
    most = next(m for m, slices in ways.items() if all(s.start < s.stop for s in slices))
    if most < shards:
        raise BadRequest(
            f"{numbers:,} parameters are too few for {shards} shards",
            f"use --parameter-server.shards {most}",
        )
    return ways[shards]


class ParameterServer:
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
        past_the_queue = (config.transport, config.fetch) == ("queue", "read")
        self.fetch = "asked" if past_the_queue else config.fetch
        self.slices = cut_to_hold_some(vector.numel(), config.shards, parts)
        self.ledger = Ledger(backend, 1 + learners)  # a learner counts its outliers
        self.vector = backend.share(vector)
        self.versions = backend.allocate((config.shards,), np.dtype(np.int64))
        self._steps = [self._optimizers(backend, where) for where in self.slices]
        self.handles = [self._host(backend, index) for index in range(config.shards)]

    def _optimizers(self, backend: Backend, where: slice) -> list[optim.PartOptimizer | None]:
        """One for each part the slice has some of."""
        made: list[optim.PartOptimizer | None] = []
        for part in self.parts.values():
            both = slice(max(where.start, part.start), min(where.stop, part.stop))
            if both.start >= both.stop:
                made.append(None)
                continue
            vector = self.vector[both]
            slots = optim.new_slots(self.optimizer, vector)
            shared = {name: backend.share(slot) for name, slot in slots.items()}
            made.append(optim.PartOptimizer(self.optimizer, vector, shared))
        return made

    def _host(self, backend: Backend, index: int) -> Handle:
        where, steps = self.slices[index], self._steps[index]
        vector, versions, ledger = self.vector[where], self.versions, self.ledger
        stale = self.config.max_staleness
        return backend.host(
            lambda: Shard(index, vector, steps, versions, ledger, stale),
            name="shard",
            numbers=where.stop - where.start,
            transport=self.config.transport,
        )

    def version(self) -> int:
        """What all of them have come to."""
        return int(self.versions.min())

    def join(self, model: Model, index: int) -> ServedParameters:
        return ServedParameters(self, model, index)

    def newest(self) -> Tensor:
        """With everything that was pushed by now: an answer comes after what was told before.

        What the shards answer, not what lies here: a backend may have no shared memory.
        """
        asked = [handle.ask("fetch") for handle in self.handles]
        gathered = torch.empty_like(self.vector)
        for future, where in zip(asked, self.slices, strict=True):
            gathered[where].copy_(future.result(ANSWER_S)[0])
        return gathered

    def state(self) -> State:
        self.newest()
        optimizers = {
            str(shard): saved({str(i): step for i, step in enumerate(steps) if step is not None})
            for shard, steps in enumerate(self._steps)
        }
        return {"version": self.version(), "optimizers": optimizers}

    def restore(self, vector: Tensor, state: State) -> None:
        self.vector.copy_(vector)
        self.versions[:] = state["version"]
        for shard, steps in enumerate(self._steps):
            there = {str(i): step for i, step in enumerate(steps) if step is not None}
            load(there, state["optimizers"].get(str(shard), {}))


class ServedParameters:
    """A worker's copy, and what it has not pushed yet."""

    def __init__(self, server: ParameterServer, model: Model, index: int) -> None:
        self._server, self._row = server, 1 + index
        self._numbers = {part: i for i, part in enumerate(server.parts)}
        self._pulls = self._version = 0
        self._ahead = [0] * server.config.shards  # how far beyond that version each shard was
        self._asked: list[Future] = []  # for parameters that are on their way
        self._due = False  # they are to be taken
        self._kept: dict[str, Sum] = {}  # of gradients not pushed yet
        self._local = (
            {
                p: optim.PartOptimizer(server.optimizer, model.vector[w])
                for p, w in server.parts.items()
            }
            if max(server.config.push_every, server.config.fetch_every) > 1
            else {}
        )
        self._usual = Usual()

    def pull(self, model: Model) -> int:
        every, how = self._server.config.fetch_every, self._server.fetch
        self._due = self._due or self._pulls % every == 0
        if self._due and how == "read":
            self._read(model)
        elif self._due:
            self._take_or_leave(model, wait=how == "asked" or self._pulls == 0)
        self._pulls += 1
        if how == "ahead" and not self._asked and self._pulls % every == 0:
            self._ask()
        return self._version

    def _read(self, model: Model) -> None:
        """As Hogwild reads: of a step a shard is in the middle of, some numbers are new."""
        self._know(self._server.versions.tolist())
        copy(self._server.vector, model.vector)

    def _take_or_leave(self, model: Model, *, wait: bool) -> None:
        """What was asked for, once it is there."""
        if not self._asked:
            self._ask()
        if wait or all(future.ready() for future in self._asked):
            self._take(model)

    def _ask(self) -> None:
        """All shards, before the first answer is awaited."""
        self._asked = [handle.ask("fetch") for handle in self._server.handles]

    def _take(self, model: Model) -> None:
        versions = []
        for future, where in zip(self._asked, self._server.slices, strict=True):
            slice_, version = future.result(ANSWER_S)
            model.vector[where].copy_(slice_)
            versions.append(int(version))
        self._asked = []
        self._know(versions)

    def _know(self, versions: list[int]) -> None:
        """A shard that was killed has lost what it was just told, and is behind ever after."""
        self._version, self._due = min(versions), False
        self._ahead = [version - self._version for version in versions]

    def push(
        self, gradient: Tensor, *, part: str, version: int, lr: float, loss: float = 0.0
    ) -> None:
        deviations = self._server.config.max_deviations
        if deviations and self._usual.is_outlier(loss, deviations):
            self._server.ledger.dropped(self._row)
            return
        if self._local:
            self._local[part].step(gradient, lr)
        every = self._server.config.push_every
        if every == 1:
            self._send(gradient, part, self._of_each(version), lr)
            return
        kept = self._kept.setdefault(part, Sum(self._of_each(version)))
        kept.add(gradient)
        if kept.gradients == every:
            self._send(kept.total, part, kept.versions, lr)
            del self._kept[part]

    def _of_each(self, version: int) -> list[int]:
        return [version + ahead for ahead in self._ahead]

    def _send(self, gradient: Tensor, part: str, versions: list[int], lr: float) -> None:
        """To every shard its slice; to those that have none of this part, that it was."""
        whole, server = self._server.parts[part], self._server
        for handle, where, version in zip(server.handles, server.slices, versions, strict=True):
            start, stop = max(where.start, whole.start), min(where.stop, whole.stop)
            if start < stop:
                mine = gradient[start - whole.start : stop - whole.start]
                _insist(handle, "push", mine, self._numbers[part], version, lr)
            else:
                _insist(handle, "passed", None, version)


class Sum:
    """Of gradients that are pushed together; as stale as the first of them."""

    def __init__(self, versions: list[int]) -> None:
        self.versions, self.gradients = versions, 0
        self.total = torch.zeros(0)

    def add(self, gradient: Tensor) -> None:
        self.total = self.total.add_(gradient) if self.gradients else gradient.clone()
        self.gradients += 1


def _insist(shard: Handle, method: str, vector: Tensor | None, *numbers: float) -> None:
    """Until it is taken: who pushes faster than the shards apply has to wait. After long it asks:
    then it is known to wait, and the shard is the one that hangs.
    """
    for _ in range(TRIES):
        if shard.tell(method, vector, *numbers):
            return
        time.sleep(FULL_S)
    while not shard.tell(method, vector, *numbers):
        shard.ask("come_to").result(ANSWER_S)


class Usual:
    """Running mean and deviation of the loss, by which outliers are known (Gorila).

    An outlier counts as the largest that would have been none: one does not spoil the measure, and
    losses that have come to be larger for good are soon usual.
    """

    WARM = 100  # losses before anything is an outlier
    DECAY = 0.99

    def __init__(self) -> None:
        self._mean = self._square = 0.0
        self._seen = 0

    def is_outlier(self, loss: float, deviations: float) -> bool:
        deviation = math.sqrt(max(0.0, self._square - self._mean**2))
        most = self._mean + deviations * deviation if self._seen >= self.WARM else math.inf
        size = min(abs(loss), most)
        self._seen += 1
        rate = max(1 / self._seen, 1 - self.DECAY)
        self._mean += rate * (size - self._mean)
        self._square += rate * (size * size - self._square)
        return abs(loss) > most


make = ParameterServer
