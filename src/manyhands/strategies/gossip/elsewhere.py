"""Learners of other nodes: each exchanges with the copy of its replica on main's node.

A learner that chooses a neighbour of its own node averages with it as on one machine. For any other
neighbour it sends its replica, and main's node averages the copy of it with that neighbour's (or
with the copy of that). The learner computes while the answer is on its way, and no lock is held. So
what a replica and its copy have in common is counted once: the mean of all replicas is conserved.

Exchanges of a learner are numbered. What was sent is kept until the answer has been added, and one
write does that. So an exchange counts once, if a request is lost or comes twice, and if the learner
or the process that answers is killed. If the node is lost, what its replicas have changed since
their last exchange is lost; the learners continue with the copies.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch import Tensor

from manyhands.strategies import Layout
from manyhands.strategies.gossip.replica import Replica
from manyhands.strategies.gossip.replicas import ABSENT, INT, NO_PARTNER, PRIVATE, Replicas
from manyhands.types import Backend, Future, Handle, Model

if TYPE_CHECKING:
    from manyhands.strategies.gossip import Gossip

ANSWER_S = 3600.0  # the supervisor kills and restarts a process that hangs long before
LEAST_S = 0.02  # between two exchanges of a learner: each costs a call to another machine
LONGEST_S = 2.0  # without an exchange: the copy is what main evaluates


class Exchange:
    """On main's node: what learners of other nodes ask."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def take(self, index: float) -> tuple[Tensor, int]:
        return self._replicas.take(int(index))

    def exchange(self, vector: Tensor, index: float, partner: float, number: float) -> Tensor:
        return self._replicas.exchange(vector, int(index), int(partner), int(number))

    def memory(self, index: float) -> Tensor:
        return self._replicas.memory(int(index))

    def keep(self, memory: Tensor, index: float) -> None:
        self._replicas.keep(memory, int(index))


class Elsewhere:
    """What the learners of a node need for it, beside their replicas."""

    def __init__(self, backend: Backend, replicas: Replicas, layout: Layout) -> None:
        vector, memory = layout.vector(layout.first), layout.memory(layout.first)
        learners = replicas.learners
        self.handle: Handle = backend.host(
            lambda: Exchange(replicas),
            name="exchange",
            numbers=max(vector.numel(), memory.numel()),
            depth=1,
        )
        self._is_away = backend.allocate((1,), INT, elsewhere=1)
        self.asked = backend.allocate((learners,), INT, elsewhere=0)  # the newest exchange
        self.sent = backend.share(vector.repeat(learners, 1), elsewhere=0)  # with it

    @property
    def is_away(self) -> bool:
        """Whether this is another node than main's."""
        return bool(self._is_away[0])


class AwayReplica(Replica):
    """The access of a learner on another node."""

    def __init__(self, shared: Gossip, index: int, elsewhere: Elsewhere) -> None:
        self._handle, self._asked = elsewhere.handle, elsewhere.asked
        self._sent = elsewhere.sent[index]
        self._answer: Future | None = None  # to an exchange that is under way
        self._sent_s = time.monotonic()
        if shared.held[index] == ABSENT:
            self._begin(shared, index)
        super().__init__(shared, index)
        if self._asked[index] > shared.number(index):  # by the process before this one
            self._ask(NO_PARTNER)

    def _begin(self, shared: Gossip, index: int) -> None:
        memory = shared.memory(index)
        if memory.numel():
            memory.copy_(self._handle.ask("memory", None, index).result(ANSWER_S))
        vector, number = self._handle.ask("take", None, index).result(ANSWER_S)
        self._asked[index] = number
        shared.begin(index, vector, int(number))

    def pull(self, model: Model) -> int:
        self._shared.set_shared(self._index)
        self._add_answer()
        return super().pull(model)

    def keep(self) -> None:
        """So main's node has the replica and its optimizer state as they are now."""
        if self._shared.held[self._index] == PRIVATE:
            return  # they have not changed since
        self._shared.set_private(self._index)
        self._add_answer(wait=True)
        self._send(NO_PARTNER)
        self._add_answer(wait=True)
        memory = self._shared.memory(self._index)
        if memory.numel():
            self._handle.ask("keep", memory, self._index).result(ANSWER_S)

    def _meet(self) -> None:
        self._add_answer()
        partner = self._chance.choice(self._neighbours) if self._neighbours else NO_PARTNER
        if partner != NO_PARTNER and self._shared.meet(self._index, partner):
            self._own += 1
            partner = NO_PARTNER
        waited_s = time.monotonic() - self._sent_s
        is_due = waited_s > (LONGEST_S if partner == NO_PARTNER else LEAST_S)
        if is_due and self._answer is None:
            self._send(partner)

    def _send(self, partner: int) -> None:
        self._shared.copy_to(self._index, self._sent)
        self._asked[self._index] += 1
        self._ask(partner)

    def _ask(self, partner: int) -> None:
        number = int(self._asked[self._index])
        self._answer = self._handle.ask("exchange", self._sent, self._index, partner, number)
        self._sent_s = time.monotonic()

    def _add_answer(self, *, wait: bool = False) -> None:
        if self._answer is not None and (wait or self._answer.ready()):
            answer, self._answer = self._answer.result(ANSWER_S), None
            self._shared.add(self._index, answer, self._sent, int(self._asked[self._index]))
