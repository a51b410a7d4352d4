"""Islands on several nodes: each node has a vector of its own for an island, its mirror.

Main's node has the vectors of all islands, and there they exchange what they learned. Learners of
another node work on its mirror as under Hogwild. One of them sends the mirror now and then; main's
node adds to the island's vector what the mirror has learned since the last time, and answers with
the vector. The node adds what that differs by from what it sent. Nothing waits for an answer, and
no lock is held over the network.

Exchanges of a mirror are numbered, and what was sent is kept until the answer has been added. An
exchange that is lost or comes twice counts once. If a process is killed in the middle of adding,
this is not repeated: some of what was learned is lost, and nothing counts twice. If a node is lost,
what it learned since the last exchange is lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.types import Backend, Future, Handle, Model, Parameters

if TYPE_CHECKING:
    from manyhands.strategies.islands import Islands

INT = np.dtype(np.int64)
Slots = Mapping[str, optim.Slots]  # by part
ANSWER_S = 3600.0  # the supervisor kills and restarts a process that hangs long before
LEAST_S = 0.02  # between two exchanges of a mirror: each costs a call to another machine
LONG_S = 2.0  # for an answer, before another learner asks again
BEGUN, DONE = range(2)


class Mirrors:
    """What main's node and the others need beside the islands' own memory."""

    def __init__(self, backend: Backend, shared: Islands, vector: Tensor) -> None:
        learners, islands = len(shared.updates), shared.islands
        self._is_away = backend.allocate((1,), INT, elsewhere=1)
        self.counts = backend.table(learners, 1, INT)  # updates by learner
        # Of each node, by island.
        self.lock = backend.lock(elsewhere=True)
        self.first = backend.allocate((islands,), INT, elsewhere=0)  # 1 + its first learner there
        self.asked = backend.allocate((islands,), INT, elsewhere=0)
        self.added = backend.allocate((islands, 2), INT, elsewhere=0)
        self.sent = [backend.share(vector, elsewhere=0) for _ in range(islands)]
        # Of main's node, by the first learner of a mirror.
        self.bases = [backend.share(vector, elsewhere=0) for _ in range(learners)]
        self.numbers = backend.allocate((learners, 2), INT, elsewhere=0)
        self.is_made = backend.allocate((islands,), INT, elsewhere=0)
        self.has_statistics = backend.allocate((len(shared.slots),), INT, elsewhere=0)
        self.handle: Handle = backend.host(
            lambda: Exchange(shared, self), name="exchange",
            numbers=max(vector.numel(), joined(shared.slots[0]).numel()), depth=1,
        )  # fmt: skip

    @property
    def is_away(self) -> bool:
        """Whether this is another node than main's."""
        return bool(self._is_away[0])


class Exchange:
    """On main's node: what learners of other nodes ask."""

    def __init__(self, shared: Islands, mirrors: Mirrors) -> None:
        self._shared, self._mirrors = shared, mirrors
        shared.mirrors = mirrors  # it is made before main's copy has it

    def take(self, island: float, first: float) -> tuple[Tensor, int]:
        """What a new mirror begins with. What the one before has sent is too old from now on."""
        base, numbers = self._mirrors.bases[int(first)], self._mirrors.numbers[int(first)]
        base.copy_(self._shared.vectors[int(island)])
        numbers[:] = numbers.max() + 1
        return base, int(numbers[DONE])

    @torch.no_grad()
    def exchange(self, vector: Tensor, island: float, first: float, number: float) -> Tensor:
        here, base = self._shared.vectors[int(island)], self._mirrors.bases[int(first)]
        numbers = self._mirrors.numbers[int(first)]
        if number <= numbers[DONE]:
            return base
        if number > numbers[BEGUN]:
            numbers[BEGUN] = int(number)
            here.add_(vector - base)
            self._shared.exchange_for(int(island))
        base.copy_(here)
        numbers[DONE] = int(number)
        return base

    def statistics(self, owner: float) -> Tensor:
        return joined(self._shared.slots[int(owner)])

    def keep(self, statistics: Tensor, owner: float) -> None:
        put(statistics, self._shared.slots[int(owner)])


class AwayMember(Parameters):
    """The access of a learner on another node. Its model lives in the mirror."""

    def __init__(self, shared: Islands, mirrors: Mirrors, model: Model, index: int) -> None:
        self._shared, self._mirrors, self._index = shared, mirrors, index
        self._island = shared.island_of(index)
        self._vector, self._sent = shared.vectors[self._island], mirrors.sent[self._island]
        self._answer: Future | None = None  # to an exchange that is under way
        self._number = self._begun = 0
        self._seen, self._since_s = (-1, -1), 0.0  # what was asked and added, since when
        self._join()
        own = shared.members[self._island]
        self._updates = shared.updates[own.start : own.stop]
        self._optimizers = shared.optimizers(index)
        model.live_in(self._vector)

    def _join(self) -> None:
        """The first learner of a node makes the mirror, while others wait."""
        mirrors, island = self._mirrors, self._island
        with mirrors.lock:
            mirrors.first[island] = mirrors.first[island] or 1 + self._index
        is_first = mirrors.first[island] == 1 + self._index
        owner = self._shared.owner_of(self._index)
        slots = self._shared.slots[owner]
        if not mirrors.has_statistics[owner] and (is_first or self._shared.has_own_statistics):
            if joined(slots).numel():
                put(self._ask("statistics", None, owner).result(ANSWER_S), slots)
            mirrors.has_statistics[owner] = 1
        if is_first and not mirrors.is_made[island]:
            vector, number = self._ask("take", None, island, self._index).result(ANSWER_S)
            self._vector.copy_(vector)
            mirrors.asked[island] = mirrors.added[island] = int(number)
            mirrors.is_made[island] = 1
        while not mirrors.is_made[island]:
            time.sleep(LEAST_S)

    def _ask(self, method: str, vector: Tensor | None, *numbers: float) -> Future:
        return self._mirrors.handle.ask(method, vector, *numbers)

    def pull(self, model: Model) -> int:  # noqa: ARG002  (its vector is the mirror)
        self._add_answer()
        self._begun = int(self._updates.sum())
        return self._shared.version()

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,  # noqa: ARG002  (only updates of the island count)
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        self._optimizers[part].step(gradient, lr)
        self._shared.ledger.applied(self._index, int(self._updates.sum()) - self._begun)
        self._shared.count(self._index)
        self._add_answer()
        if self._answer is None:
            self._exchange_if_due()

    def keep(self) -> None:
        """So main's node has what the mirror has learned, and the optimizer statistics."""
        self._add_answer(wait=True)
        if self._send():
            self._add_answer(wait=True)
        owner = self._shared.owner_of(self._index)
        statistics = joined(self._shared.slots[owner])
        if statistics.numel():
            self._ask("keep", statistics, owner).result(ANSWER_S)

    def _exchange_if_due(self) -> None:
        asked = int(self._mirrors.asked[self._island])
        seen, now_s = (asked, int(self._mirrors.added[self._island, DONE])), time.monotonic()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        if seen[0] == seen[1] and now_s - self._since_s > LEAST_S:
            self._send()
        elif seen[0] > seen[1] and now_s - self._since_s > LONG_S:  # the one that sent it has ended
            self._exchange(asked)

    def _send(self) -> bool:
        """False: another learner of the node has sent the mirror."""
        asked, added = self._mirrors.asked, self._mirrors.added
        with self._mirrors.lock:
            if asked[self._island] > added[self._island, DONE]:
                return False
            self._sent.copy_(self._vector)
            asked[self._island] += 1
        self._exchange(int(asked[self._island]))
        return True

    def _exchange(self, number: int) -> None:
        first = int(self._mirrors.first[self._island]) - 1
        self._number = number
        self._answer = self._ask("exchange", self._sent, self._island, first, number)

    @torch.no_grad()
    def _add_answer(self, *, wait: bool = False) -> None:
        if self._answer is None or not (wait or self._answer.ready()):
            return
        answer, self._answer = self._answer.result(ANSWER_S), None
        added = self._mirrors.added[self._island]
        with self._mirrors.lock:
            if added[DONE] >= self._number:
                return  # by another learner
            if added[BEGUN] < self._number:
                added[BEGUN] = self._number
                self._vector.add_(answer - self._sent)
            else:  # one was killed while it added
                self._vector.copy_(answer)
            added[DONE] = self._number


def joined(slots: Slots) -> Tensor:
    """Optimizer statistics as one vector."""
    found = [slot.reshape(-1) for part in slots.values() for slot in part.values()]
    return torch.cat([torch.zeros(0), *found])  # there may be none


def put(statistics: Tensor, slots: Slots) -> None:
    """The inverse of `joined`."""
    start = 0
    for slot in (slot for part in slots.values() for slot in part.values()):
        stop = start + slot.numel()
        slot.copy_(statistics[start:stop].view(slot.shape))
        start = stop
