"""Gossip: every learner has a replica, and averages it with a neighbour it meets by chance.

This is AD-PSGD (Lian et al. 2018), and with an actor-critic on a ring GALA (Assran et al. 2019): to
push is to average one's replica with a neighbour's, without waiting for the rest, then to apply the
gradient to one's own. An average changes two replicas and conserves the mean of all. The locks of
the two are taken in the order of their numbers, so that nobody waits in a circle.

It differs from the papers in that the neighbour takes no part in it: replicas lie in shared memory,
a busy or dead neighbour's as well as any other, and a follower goes on with its seat's. (GALA's own
messages go one way, and its learners may run ahead of each other a bounded number of steps.)

A kill leaves no average half done: it is written beside what is current, and a table of what is
current is replaced as a whole by one number. A gradient is applied in place: of one that was just
being applied some numbers have taken their step and the others have not.

Nothing is copied to be computed with: a learner's model lives in the vector that was current when
it pulled, and who averages meanwhile writes to another of the replica's three.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Layout, Ledger, average, copy, load, saved
from manyhands.types import Array, Backend, Model, State, knob

VECTORS = 3  # of a replica: the current one, the one computed with, and one to write to
Line = list[int]  # a replica's: which vector is current, how often it was averaged
Steps = list[dict[str, optim.PartOptimizer]]


@dataclass(frozen=True)
class Config:
    topology: str = knob(
        "ring",
        "who may meet: the next two, everybody, or those 1, 2, 4, … seats away",
        choices=("ring", "complete", "exponential"),
    )


def neighbours(topology: str, learners: int, index: int) -> list[int]:
    """Whom a learner may meet; each may meet it as well."""
    distances = {
        "ring": range(1, 2),
        "complete": range(1, learners),
        "exponential": [2**k for k in range(learners.bit_length())],
    }[topology]
    met = {(index + sign * d) % learners for d in distances for sign in (1, -1)}
    return sorted(met - {index})


class Gossip:
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
        self.config, self.learners = config, learners
        self.ledger = Ledger(backend, learners)
        self._layout = layout = Layout(optimizer, vector, parts)
        memory = layout.memory(layout.first)
        self._vectors = [list(own) for own in backend.share(vector.repeat(learners, VECTORS, 1))]
        self._memories = backend.share(memory.repeat(learners, 1))
        self._locks = [backend.lock() for _ in range(learners)]
        self._updates = backend.allocate((learners,), np.dtype(np.int64))
        self._in_use = backend.allocate((learners,), np.dtype(np.int64))  # the vector computed with
        self._tables = backend.allocate((2, learners, 2), np.dtype(np.int64))
        self._current = backend.allocate((1,), np.dtype(np.int64))  # which of the two tables
        self._commit = backend.lock()
        self._seed = zlib.crc32(vector.detach().cpu().numpy().tobytes())  # the run's own

    def join(self, model: Model, index: int) -> Replica:  # noqa: ARG002
        return Replica(self, index)

    # --- Replicas; their locks are held -----------------------------------------------------------

    def _line(self, index: int) -> Line:
        """A copy. Others may replace the table meanwhile, but not what is in this line."""
        line: Line = self._tables[self._current[0], index].tolist()
        return line

    def _replace(self, lines: Mapping[int, Line]) -> None:
        """All of them at once, whenever we are killed."""
        with self._commit:
            now = int(self._current[0])
            table = self._tables[1 - now]
            table[:] = self._tables[now]
            for index, line in lines.items():
                table[index] = line
            self._current[0] = 1 - now

    def _free(self, index: int, current: int) -> int:
        used = {current, int(self._in_use[index])}
        return next(which for which in range(VECTORS) if which not in used)

    # --- What learners do -----------------------------------------------------------------------

    def use(self, index: int) -> tuple[Tensor, int, int]:
        """The replica as it is: nobody writes to that vector until another is used, but for the
        learner's own gradients. How many updates it has had, and how many averages.
        """
        with self._locks[index]:
            which, meetings = self._line(index)
            self._in_use[index] = which
            return self._vectors[index][which], int(self._updates[index]), meetings

    def meet(self, one: int, other: int) -> None:
        """Both replicas become their average."""
        low, high = sorted((one, other))
        with self._locks[low], self._locks[high]:
            (here, often), (there, as_often) = self._line(low), self._line(high)
            ours, theirs = self._vectors[low], self._vectors[high]
            mine, its = self._free(low, here), self._free(high, there)
            average(ours[here], theirs[there], into=ours[mine])
            copy(ours[mine], theirs[its])
            self._replace({low: [mine, often + 1], high: [its, as_often + 1]})

    def apply(self, index: int, steps: Steps, gradient: Tensor, part: str, lr: float) -> int:
        """To one's own replica. Returns how often it has been averaged."""
        with self._locks[index]:
            which, meetings = self._line(index)
            steps[which][part].step(gradient, lr)
            self._updates[index] += 1
            return meetings

    def optimizers(self, index: int) -> Steps:
        """For each of its vectors."""
        memory = self._memories[index]
        return [self._layout.optimizers(vector, memory) for vector in self._vectors[index]]

    def chance(self, index: int) -> random.Random:
        """Of whom a learner meets: another for each run, each learner and each who follows it."""
        return random.Random(f"{self._seed} {index} {self._updates[index]}")

    # --- What main sees -------------------------------------------------------------------------

    def copies(self) -> Tensor:
        """All replicas, each as it was at one moment."""
        found = torch.stack([vectors[0] for vectors in self._vectors])
        for index, vectors in enumerate(self._vectors):
            with self._locks[index]:
                copy(vectors[self._line(index)[0]], found[index])
        return found

    def newest(self) -> Tensor:
        """The mean of all, which no average changes."""
        return self.copies().mean(0)

    def version(self) -> int:
        return int(self._updates.sum())

    def consensus_distance(self) -> float:
        """How far replicas are from their mean, as a root of the mean of squares."""
        apart = self.copies()
        apart -= apart.mean(0)
        return math.sqrt(float(apart.square().sum()) / self.learners)

    def diagnostics(self) -> Mapping[str, float]:
        return {"charts/consensus_distance": self.consensus_distance()}

    def state(self) -> State:
        """Of each its vector, its past and its optimizers'; and how far apart they are."""
        kept = [self._kept(index) for index in range(self.learners)]
        return {
            "replicas": np.stack([vector for vector, _, _ in kept]),
            "lines": np.array([past for _, past, _ in kept]),
            "optimizers": {str(index): steps for index, (_, _, steps) in enumerate(kept)},
            "consensus_distance": self.consensus_distance(),
        }

    def _kept(self, index: int) -> tuple[Array, tuple[int, int], State]:
        with self._locks[index]:
            which, meetings = self._line(index)
            vector = self._vectors[index][which].cpu().numpy().copy()
            past = int(self._updates[index]), meetings
            return vector, past, saved(self.optimizers(index)[which])

    def restore(self, vector: Tensor, state: State) -> None:
        """Every replica its own; all the same if they were not as many."""
        lines, replicas = np.array(state["lines"]), np.array(state["replicas"])
        same = len(replicas) == self.learners
        for index in range(self.learners):
            updates, meetings = lines[index if same else 0].tolist()
            self._updates[index] = updates if same else int(lines[:, 0].sum()) // self.learners
            kept = vector.new_tensor(replicas[index]) if same else vector
            self._vectors[index][0].copy_(kept)
            load(self.optimizers(index)[0], state["optimizers"].get(str(index), {}))
            self._replace({index: [0, meetings]})


class Replica:
    """One learner's hold on its own, and whom it meets."""

    def __init__(self, shared: Gossip, index: int) -> None:
        self._shared, self._index = shared, index
        self._neighbours = neighbours(shared.config.topology, shared.learners, index)
        self._chance = shared.chance(index)
        self._steps = shared.optimizers(index)
        self._meetings = self._own = 0  # before the pull; of our own since

    def pull(self, model: Model) -> int:
        """Others average with the replica while we compute, but elsewhere."""
        vector, updates, self._meetings = self._shared.use(self._index)
        self._own = 0
        if vector is not model.vector:
            model.live_in(vector)
        return updates

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,  # noqa: ARG002  (own updates: nobody else makes any)
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        if self._neighbours:
            self._shared.meet(self._index, self._chance.choice(self._neighbours))
            self._own += 1
        met = self._shared.apply(self._index, self._steps, gradient, part, lr)
        self._shared.ledger.applied(self._index, met - self._own - self._meetings)


make = Gossip
