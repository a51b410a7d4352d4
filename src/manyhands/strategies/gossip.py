"""Gossip: every learner has a replica, and averages it with a random neighbour's.

This is AD-PSGD (Lian et al. 2018), and with an actor-critic on a ring it is close to GALA (Assran
et al. 2019). A push averages the learner's replica with a neighbour's, then applies the gradient to
its own, without waiting for the rest. An average changes two replicas and keeps the mean of all.
The two locks are taken in the order of their indices, so there is no deadlock.

It differs from the papers: the neighbour takes no part in the average. All replicas are in shared
memory, so a learner can average with a busy or dead neighbour. A restarted learner continues with
the replica of its rank. (GALA sends one-way messages, and its learners may differ by a bounded
number of steps.)

A kill cannot leave half of an average. It is written to spare vectors, and one write then makes
them current. A gradient is applied in place: a kill in the middle leaves some numbers stepped and
others not.

A pull copies nothing. The learner's model uses the vector that is current at the pull; averages
made meanwhile are written to another of the replica's three vectors.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.maths import graphs
from manyhands.strategies import (
    Layout,
    Ledger,
    average,
    copy,
    load,
    mean,
    middle,
    saved,
    spread,
)
from manyhands.types import (
    Array,
    Backend,
    Model,
    Options,
    Parameters,
    State,
    Strategy,
    option,
    restored,
)
from manyhands.types.communication import Sharing

VECTORS = 3  # per replica: the current one, the one its learner computes with, a free one
Line = list[int]  # per replica: the current vector's index, how often it was averaged
Steps = list[dict[str, optim.PartOptimizer]]


@dataclass(frozen=True)
class Config(Options):
    sharing = Sharing(locks="pair", sends="pair")

    topology: str = option(
        "ring",
        "neighbours of a learner: the next two, all, or those 1, 2, 4, … ranks away",
        choices=graphs.TOPOLOGIES,
    )


class Gossip(Strategy):
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
        self._base = backend.allocate((learners,), np.dtype(np.int64))  # of others, before a resume
        self._in_use = backend.allocate((learners,), np.dtype(np.int64))  # by its learner
        self._tables = backend.allocate((2, learners, 2), np.dtype(np.int64))
        self._current = backend.allocate((1,), np.dtype(np.int64))  # which of the two tables
        self._commit = backend.lock()
        self._seed = zlib.crc32(vector.detach().cpu().numpy().tobytes())  # differs between runs

    def join(self, model: Model, index: int) -> Replica:  # noqa: ARG002
        return Replica(self, index)

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

    def _free(self, index: int, current: int) -> int:
        used = {current, int(self._in_use[index])}
        return next(which for which in range(VECTORS) if which not in used)

    # --- For learners ---------------------------------------------------------------------------

    def use(self, index: int) -> tuple[Tensor, int, int]:
        """The current vector, its number of updates, and its number of averages.

        Until the next call only the learner's own gradients change this vector.
        """
        with self._locks[index]:
            which, meetings = self._line(index)
            self._in_use[index] = which
            version = int(self._updates[index] + self._base[index])
            return self._vectors[index][which], version, meetings

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
        """Applies a gradient to the learner's own replica. Returns how often it was averaged."""
        with self._locks[index]:
            which, meetings = self._line(index)
            steps[which][part].step(gradient, lr)
            self._updates[index] += 1
            return meetings

    def optimizers(self, index: int) -> Steps:
        """For each vector of this replica."""
        memory = self._memories[index]
        return [self._layout.optimizers(vector, memory) for vector in self._vectors[index]]

    def chance(self, index: int) -> random.Random:
        """Chooses neighbours. Differs between runs, learners and restarts."""
        return random.Random(f"{self._seed} {index} {self._updates[index]}")

    # --- For main -------------------------------------------------------------------------------

    def copies(self) -> Tensor:
        """All replicas, each copied under its lock."""
        copies = torch.stack([vectors[0] for vectors in self._vectors])
        for index, vectors in enumerate(self._vectors):
            with self._locks[index]:
                copy(vectors[self._line(index)[0]], copies[index])
        return copies

    def newest(self) -> Tensor:
        """The mean of all replicas, which an average does not change."""
        return middle(self.copies())

    def version(self) -> int:
        return int(self._updates.sum())

    def consensus_distance(self) -> float:
        """Root mean square of the replicas' distances from their mean."""
        return spread(self.copies())

    def diagnostics(self) -> Mapping[str, float]:
        return {"charts/consensus_distance": self.consensus_distance()}

    def state(self) -> State:
        """Its own state has for each replica vector, counts and optimizer state."""
        replicas = [self._replica_state(index) for index in range(self.learners)]
        own = {
            "replicas": np.stack([vector for vector, _, _ in replicas]),
            "counts": np.array([counts for _, counts, _ in replicas]),
            "base": self._base.copy(),
            "optimizers": {str(index): steps for index, (_, _, steps) in enumerate(replicas)},
            "consensus_distance": self.consensus_distance(),
        }
        optimizers = mean([steps for _, _, steps in replicas])
        return {"version": self.version(), "optimizers": optimizers, "own": {"gossip": own}}

    def _replica_state(self, index: int) -> tuple[Array, tuple[int, int], State]:
        with self._locks[index]:
            which, meetings = self._line(index)
            vector = self._vectors[index][which].cpu().numpy().copy()
            counts = int(self._updates[index]), meetings
            return vector, counts, saved(self.optimizers(index)[which])

    def restore(self, vector: Tensor, state: State) -> None:
        """Restores each replica. All get the same weights if others than these were saved."""
        own = state["own"].get("gossip", {})
        if len(own.get("optimizers", ())) != self.learners:
            own = self._alike(vector, state)
        counts = np.zeros((self.learners, 2), np.int64)
        counts[:] = restored.between(own, "counts", counts, 0, restored.MOST)
        self._base[:] = restored.between(own, "base", self._base, 0, restored.MOST)
        like = np.zeros((self.learners, vector.numel()), np.float32)
        replicas = restored.array(own, "replicas", like)
        for index in range(self.learners):
            self._updates[index], meetings = counts[index].tolist()
            self._vectors[index][0].copy_(vector.new_tensor(replicas[index]))
            load(self.optimizers(index)[0], own["optimizers"][str(index)])
            self._replace({index: [0, meetings]})

    def _alike(self, vector: Tensor, state: State) -> State:
        """Equal replicas, made of another strategy's state. They share its updates."""
        version, learners = restored.count(state, "version"), self.learners
        updates = [version // learners + (i < version % learners) for i in range(learners)]
        return {
            "counts": np.array([[number, 0] for number in updates], np.int64),
            "base": version - np.array(updates, np.int64),  # so a target network is not outdated
            "replicas": np.tile(vector.cpu().numpy(), (learners, 1)),
            "optimizers": {str(index): state["optimizers"] for index in range(learners)},
        }


class Replica(Parameters):
    """One learner's access to its own replica, and its neighbours."""

    def __init__(self, shared: Gossip, index: int) -> None:
        self._shared, self._index = shared, index
        self._neighbours = graphs.neighbours(shared.config.topology, shared.learners, index)
        self._chance = shared.chance(index)
        self._steps = shared.optimizers(index)
        self._meetings = self._own = 0  # averages before the pull; own averages since

    def pull(self, model: Model) -> int:
        """Averages made while the learner computes go to another vector."""
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
        version: int,  # noqa: ARG002  (only its own updates count)
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        if self._neighbours:
            self._shared.meet(self._index, self._chance.choice(self._neighbours))
            self._own += 1
        meetings = self._shared.apply(self._index, self._steps, gradient, part, lr)
        self._shared.ledger.applied(self._index, meetings - self._own - self._meetings)


make = Gossip
