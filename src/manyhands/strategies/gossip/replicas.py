"""Replicas in the memory of one node: averages in pairs, and exchanges with other nodes.

A kill cannot leave half of an average. It is written to spare vectors, and one write then makes
them current. A gradient is applied in place: a kill in the middle leaves some numbers stepped and
others not.

A pull copies nothing. The learner's model uses the vector that is current at the pull; averages
made meanwhile are written to another of the replica's three vectors.

If a learner is on another node, its replica is there. Main's node has a copy of it, which takes
part in averages like any other replica. The two exchange what has changed (`exchange`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Layout, average, copy
from manyhands.types import Backend

INT = np.dtype(np.int64)
VECTORS = 3  # per replica: the current one, the one its learner computes with, a free one
NO_PARTNER = -1
# Of a replica on a node. A private one takes part in no average of others.
ABSENT, SHARED, PRIVATE = range(3)
# Of a line, one for each replica: the current vector, how often it was averaged. Of a copy: 1 + the
# vector after its last exchange, or 0 if the learner is on this node; the number of that exchange.
WHICH, OFTEN, BASE, NUMBER = range(4)
UPDATES, BEFORE = range(2)  # of a learner's counts: its own, and those of others before a resume
Line = list[int]
Steps = list[dict[str, optim.PartOptimizer]]


class Replicas:
    """Jobs of other nodes may capture it. Each node has its own memory."""

    def __init__(self, backend: Backend, layout: Layout, learners: int) -> None:
        self.learners, self._layout = learners, layout
        first = layout.first
        vectors = layout.vector(first).repeat(learners, VECTORS, 1)
        memories = layout.memory(first).repeat(learners, 1)
        self._vectors: list[list[Tensor]] = [
            list(own) for own in backend.share(vectors, elsewhere=0)
        ]
        self._memories = backend.share(memories, elsewhere=0)
        self._locks = [backend.lock(elsewhere=True) for _ in range(learners)]
        self._counts = backend.table(learners, 2, INT)
        self._in_use = backend.allocate((learners,), INT, elsewhere=0)  # by its learner
        self._tables = backend.allocate((2, learners, 4), INT, elsewhere=0)
        self._current = backend.allocate((1,), INT, elsewhere=0)  # which of the two tables
        self._commit = backend.lock(elsewhere=True)
        self.held = backend.allocate((learners,), INT, elsewhere=ABSENT)
        self.held[:] = SHARED  # main's node has all replicas, or copies of them

    # --- Callers hold the locks of these replicas -------------------------------------------------

    def _line(self, index: int) -> Line:
        """A copy. Other learners may replace the table, but not the content of this line."""
        line: Line = self._tables[self._current[0], index].tolist()
        return line

    def _replace(self, lines: Mapping[int, Line]) -> None:
        """Replaces these lines atomically, even if this process is killed."""
        with self._commit:
            now = int(self._current[0])
            table = self._tables[1 - now]
            table[:] = self._tables[now]
            for index, line in lines.items():
                table[index] = line
            self._current[0] = 1 - now

    def _free(self, index: int, line: Line) -> int:
        """A vector that may be written to."""
        kept = line[BASE] - 1 if line[BASE] else int(self._in_use[index])
        return next(which for which in range(VECTORS) if which not in (line[WHICH], kept))

    def _averaged(self, line: Line, which: int) -> Line:
        return [which, line[OFTEN] + 1, *line[BASE:]]

    # --- For learners of this node ----------------------------------------------------------------

    def use(self, index: int) -> tuple[Tensor, int, int]:
        """The current vector, its number of updates, and its number of averages.

        Until the next call only the learner's own gradients change this vector.
        """
        with self._locks[index]:
            which, meetings, *_ = self._line(index)
            self._in_use[index] = which
            version = int(self._counts.row(index).sum())
            return self._vectors[index][which], version, meetings

    def meet(self, one: int, other: int) -> bool:
        """Both replicas become their average. False: this node has no replica of the other."""
        low, high = sorted((one, other))
        with self._locks[low], self._locks[high]:
            if self.held[other] != SHARED:
                return False
            here, there = self._line(low), self._line(high)
            ours, theirs = self._vectors[low], self._vectors[high]
            mine, its = self._free(low, here), self._free(high, there)
            average(ours[here[WHICH]], theirs[there[WHICH]], into=ours[mine])
            copy(ours[mine], theirs[its])
            self._replace({low: self._averaged(here, mine), high: self._averaged(there, its)})
            return True

    def apply(self, index: int, steps: Steps, gradient: Tensor, part: str, lr: float) -> int:
        """Applies a gradient to the learner's own replica. Returns how often it was averaged."""
        with self._locks[index]:
            which, meetings, *_ = self._line(index)
            steps[which][part].step(gradient, lr)
            self._counts.row(index)[UPDATES] += 1
            return meetings

    def optimizers(self, index: int) -> Steps:
        """For each vector of this replica."""
        memory = self._memories[index]
        return [self._layout.optimizers(vector, memory) for vector in self._vectors[index]]

    def copy_to(self, index: int, into: Tensor) -> None:
        with self._locks[index]:
            copy(self._vectors[index][self._line(index)[WHICH]], into)

    # --- For a learner that moves -----------------------------------------------------------------

    def settle(self, index: int) -> None:
        """Its learner is on main's node. It may have been on another one, which was lost."""
        with self._locks[index]:
            which, meetings, base, number = self._line(index)
            if base:
                self._in_use[index] = which
                self._replace({index: [which, meetings, 0, number + 1]})

    def begin(self, index: int, vector: Tensor, number: int) -> None:
        """Its learner begins on this node with a copy."""
        self._vectors[index][0].copy_(vector)
        self._replace({index: [0, 0, 0, number]})
        self.set_shared(index)

    def set_shared(self, index: int) -> None:
        self.held[index] = SHARED

    def set_private(self, index: int) -> None:
        """Only its own learner changes this replica from now on."""
        with self._locks[index]:
            self.held[index] = PRIVATE

    def number(self, index: int) -> int:
        """Of the newest exchange whose answer was added."""
        return self._line(index)[NUMBER]

    @torch.no_grad()
    def add(self, index: int, answer: Tensor, sent: Tensor, number: int) -> None:
        """What the copy on main's node differed by from what was sent."""
        with self._locks[index]:
            line, own = self._line(index), self._vectors[index]
            mine = self._free(index, line)
            torch.sub(answer, sent, out=own[mine]).add_(own[line[WHICH]])
            self._replace({index: [mine, line[OFTEN] + 1, 0, number]})

    # --- On main's node, for learners of other nodes ----------------------------------------------

    def take(self, index: int) -> tuple[Tensor, int]:
        """The copy that a learner of another node begins with, and the number of this exchange.

        An exchange that the learner's last node has sent is too old from now on.
        """
        with self._locks[index]:
            which, meetings, _, number = self._line(index)
            self._replace({index: [which, meetings, which + 1, number + 1]})
            return self._vectors[index][which], number + 1

    @torch.no_grad()
    def exchange(self, vector: Tensor, index: int, partner: int, number: int) -> Tensor:
        """Adds to the copy what its learner has changed since the exchange before.

        Then it may be averaged with a partner's replica. One write makes all of it current. The
        answer is the copy as it is then. The learner adds what that differs by from what it sent.
        """
        both = sorted({index, partner} - {NO_PARTNER})
        with ExitStack() as stack:
            for replica in both:
                stack.enter_context(self._locks[replica])
            line, own = self._line(index), self._vectors[index]
            if not line[BASE] or number <= line[NUMBER]:  # it was done, and the answer was lost
                return own[max(0, line[BASE] - 1)]
            mine = self._free(index, line)
            torch.sub(vector, own[line[BASE] - 1], out=own[mine]).add_(own[line[WHICH]])
            lines = {index: [mine, line[OFTEN], mine + 1, number]}
            if partner != NO_PARTNER:
                there, theirs = self._line(partner), self._vectors[partner]
                its = self._free(partner, there)
                average(own[mine], theirs[there[WHICH]], into=own[mine])
                copy(own[mine], theirs[its])
                lines[index][OFTEN] += 1
                lines[partner] = self._averaged(there, its)
            self._replace(lines)
            return own[mine]

    def memory(self, index: int) -> Tensor:
        """The optimizer state of the last checkpoint."""
        return self._memories[index]

    def keep(self, memory: Tensor, index: int) -> None:
        self._memories[index].copy_(memory)
