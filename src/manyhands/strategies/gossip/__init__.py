"""Gossip: every learner has a replica, and averages it with a random neighbour's.

This is AD-PSGD (Lian et al. 2018), and with an actor-critic on a ring it is close to GALA (Assran
et al. 2019). A push averages the learner's replica with a neighbour's, then applies the gradient to
its own, without waiting for the rest. An average changes two replicas and keeps the mean of all.
The two locks are taken in the order of their indices, so there is no deadlock.

It differs from the papers: the neighbour takes no part in the average. All replicas of a node are
in shared memory, so a learner can average with a busy or dead neighbour. A restarted learner
continues with the replica of its rank. (GALA sends one-way messages, and its learners may differ by
a bounded number of steps.) Learners on several nodes exchange differences: `elsewhere.py`.
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
from manyhands.strategies import Layout, Ledger, load, mean, middle, saved, spread, total
from manyhands.strategies.gossip.elsewhere import AwayReplica, Elsewhere
from manyhands.strategies.gossip.replica import Replica
from manyhands.strategies.gossip.replicas import BEFORE, UPDATES, Replicas
from manyhands.types import Array, Backend, Model, Options, State, Strategy, option, restored
from manyhands.types.communication import Sharing


@dataclass(frozen=True)
class Config(Options):
    sharing = Sharing(locks="pair", sends="pair")

    topology: str = option(
        "ring",
        "neighbours of a learner: the next two, all, or those 1, 2, 4, … ranks away",
        choices=graphs.TOPOLOGIES,
    )


class Gossip(Replicas, Strategy):
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
        layout = Layout(optimizer, vector, parts)
        super().__init__(backend, layout, learners)
        self.config = config
        self.ledger = Ledger(backend, learners)
        self._seed = zlib.crc32(vector.detach().cpu().numpy().tobytes())  # differs between runs
        self._elsewhere = Elsewhere(backend, self, layout) if backend.has_other_nodes() else None

    def join(self, model: Model, index: int) -> Replica:  # noqa: ARG002
        if self._elsewhere is not None:
            if self._elsewhere.is_away:
                return AwayReplica(self, index, self._elsewhere)
            self.settle(index)
        return Replica(self, index)

    def chance(self, index: int) -> random.Random:
        """Chooses neighbours. Differs between runs, learners and restarts."""
        return random.Random(f"{self._seed} {index} {self._counts.row(index)[UPDATES]}")

    # --- For main -------------------------------------------------------------------------------

    def copies(self) -> Tensor:
        """All replicas, each copied under its lock."""
        copies = torch.stack([vectors[0] for vectors in self._vectors])
        for index, into in enumerate(copies):
            self.copy_to(index, into)
        return copies

    def newest(self) -> Tensor:
        """The mean of all replicas, which an average does not change."""
        return middle(self.copies())

    def version(self) -> int:
        return total(self._counts.rows()[:, UPDATES])

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
            "base": self._counts.rows()[:, BEFORE].copy(),
            "optimizers": {str(index): steps for index, (_, _, steps) in enumerate(replicas)},
            "consensus_distance": self.consensus_distance(),
        }
        optimizers = mean([steps for _, _, steps in replicas])
        return {"version": self.version(), "optimizers": optimizers, "own": {"gossip": own}}

    def _replica_state(self, index: int) -> tuple[Array, tuple[int, int], State]:
        with self._locks[index]:
            which, meetings, *_ = self._line(index)
            vector = self._vectors[index][which].cpu().numpy().copy()
            counts = int(self._counts.rows()[index, UPDATES]), meetings
            return vector, counts, saved(self.optimizers(index)[which])

    def restore(self, vector: Tensor, state: State) -> None:
        """Restores each replica. All get the same weights if others than these were saved."""
        own = state["own"].get("gossip", {})
        if len(own.get("optimizers", ())) != self.learners:
            own = self._alike(vector, state)
        counts = np.zeros((self.learners, 2), np.int64)
        counts[:] = restored.between(own, "counts", counts, 0, restored.MOST)
        base = restored.between(own, "base", np.zeros(self.learners, np.int64), 0, restored.MOST)
        like = np.zeros((self.learners, vector.numel()), np.float32)
        replicas = restored.array(own, "replicas", like)
        for index in range(self.learners):
            updates, meetings = counts[index].tolist()
            self._counts.row(index)[:] = updates, base[index]
            self._vectors[index][0].copy_(vector.new_tensor(replicas[index]))
            load(self.optimizers(index)[0], own["optimizers"][str(index)])
            self._replace({index: [0, meetings, 0, 0]})

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


make = Gossip
