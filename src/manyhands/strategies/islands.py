"""Islands: groups of workers that share one vector. Inside an island they work as under Hogwild.

Here is what the strategies with islands have in common: vectors, counts and optimizer statistics.
The strategies differ in how islands exchange what they learned (`Member.exchange`).

A version counts the updates of all islands, as under Hogwild. Staleness counts those of the own
island: gradients of another island reach its vector only in an exchange. Everything is in shared
memory, so a restarted worker continues with its island's state, and an island whose workers have
ended can still be read. Islands of other nodes have mirrors there: `mirrors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.strategies import Ledger, load, mean, middle, saved, shared_slots, spread, total
from manyhands.strategies.mirrors import AwayMember, Mirrors
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

INT = np.dtype(np.int64)
PATIENCE = 64  # updates that a learner makes before another one without any counts as stopped


@dataclass(frozen=True)
class IslandOptions(Options):
    has_islands: ClassVar[bool] = True
    sharing = Sharing(island=1)  # or as many as --island-size says

    statistics: str = option(
        "island",
        "optimizer statistics: one set per island, or one per worker",
        choices=("island", "own"),
    )


class Islands(Strategy):
    name: ClassVar[str]  # of the strategy, in checkpoints

    def __init__(
        self,
        config: IslandOptions,
        *,
        backend: Backend,
        vector: Tensor,
        parts: Mapping[str, slice],
        optimizer: optim.Config,
        learners: int,
        island_size: int,
    ) -> None:
        self.parts, self.optimizer = parts, optimizer
        self.ledger, self.pause = Ledger(backend, learners), backend.pause()
        starts = range(0, learners, island_size)
        self.members = [range(first, min(first + island_size, learners)) for first in starts]
        self.islands = len(self.members)
        self.vectors = [backend.share(vector, elsewhere=0) for _ in self.members]
        self.updates = backend.allocate((learners,), INT, elsewhere=0)  # of this node's learners
        self.has_own_statistics = config.statistics == "own"
        owners = learners if self.has_own_statistics else self.islands
        self.slots = [
            shared_slots(backend, optimizer, vector, parts, elsewhere=0) for _ in range(owners)
        ]
        self.mirrors: Mirrors | None = None

    def share_with_other_nodes(self, backend: Backend, vector: Tensor) -> None:
        """Called last: main's node exchanges with others by all that was made before."""
        if backend.has_other_nodes():
            self.mirrors = Mirrors(backend, self, vector)

    def away_member(self, model: Model, index: int) -> AwayMember | None:
        """For a learner on another node than main's."""
        if self.mirrors is None or not self.mirrors.is_away:
            return None
        return AwayMember(self, self.mirrors, model, index)

    def exchange_for(self, island: int) -> None:
        """On main's node, after what an island has learned on another one has come.

        It must not wait for anything.
        """

    def owner_of(self, index: int) -> int:
        """Which set of statistics a learner uses."""
        return index if self.has_own_statistics else self.island_of(index)

    def count(self, index: int) -> None:
        """An update of this learner, in its own process."""
        self.updates[index] += 1
        if self.mirrors is not None:
            self.mirrors.counts.row(index)[0] += 1

    def island_of(self, index: int) -> int:
        return next(i for i, members in enumerate(self.members) if index in members)

    def optimizers(self, index: int) -> dict[str, optim.PartOptimizer]:
        """The optimizers of one learner, on its island's vector."""
        island = self.island_of(index)
        slots = self.slots[self.owner_of(index)]
        return {
            part: optim.PartOptimizer(self.optimizer, self.vectors[island][where], slots[part])
            for part, where in self.parts.items()
        }

    # --- For main -------------------------------------------------------------------------------

    def newest(self) -> Tensor:
        """The mean of all islands' vectors."""
        return self.vectors[0] if self.islands == 1 else middle(torch.stack(self.vectors))

    def version(self) -> int:
        if self.mirrors is not None:
            return total(self.mirrors.counts.rows())
        return total(self.updates)

    def diagnostics(self) -> Mapping[str, float]:
        return {"charts/consensus_distance": spread(torch.stack(self.vectors))}

    def state(self) -> State:
        each = [saved(self.optimizers(index)) for index in self._owners()]
        own = {
            "vectors": stacked(self.vectors),
            "optimizers": {str(number): one for number, one in enumerate(each)},
            **self.own_state(),
        }
        return {"version": self.version(), "optimizers": mean(each), "own": {self.name: own}}

    def restore(self, vector: Tensor, state: State) -> None:
        """Each island as it was saved. Of another strategy, or other islands: all alike."""
        self.updates[:] = 0
        self.updates[0] = restored.count(state, "version")
        if self.mirrors is not None:
            for index, updates in enumerate(self.updates):
                self.mirrors.counts.row(index)[0] = updates
        own = state["own"].get(self.name, {})
        if not self._fits(own):
            own = {"vectors": np.tile(vector.cpu().numpy(), (self.islands, 1))}
        fill(self.vectors, own, "vectors")
        for number, index in enumerate(self._owners()):
            of_all = state["optimizers"]
            load(self.optimizers(index), own.get("optimizers", {}).get(str(number), of_all))
        self.restore_own(own)

    def _owners(self) -> list[int]:
        """The first learner of each set of statistics."""
        firsts = [members.start for members in self.members]
        return list(range(len(self.slots))) if self.has_own_statistics else firsts

    def _fits(self, own: State) -> bool:
        vectors = np.asarray(own.get("vectors", ()))
        return len(vectors) == self.islands and len(own["optimizers"]) == len(self.slots)

    def own_state(self) -> State:
        """What a strategy saves besides; the same islands get it back."""
        return {}

    def restore_own(self, own: State) -> None:
        """`own`: as saved, or only `vectors` if others than these islands were saved."""


def stacked(vectors: list[Tensor]) -> Array:
    """A copy of one vector per island, for a checkpoint."""
    array: Array = torch.stack(vectors).cpu().numpy()
    return array


def fill(vectors: list[Tensor], own: State, name: str) -> None:
    """The inverse of `stacked`."""
    like = np.zeros((len(vectors), vectors[0].numel()), np.float32)
    for vector, row in zip(vectors, restored.array(own, name, like), strict=True):
        vector.copy_(vector.new_tensor(row))


class Member(Parameters):
    """One learner's access to its island. Its model lives in the island's vector."""

    def __init__(self, shared: Islands, model: Model, index: int) -> None:
        self.index, self.island = index, shared.island_of(index)
        self._islands, self._begun = shared, 0
        own = shared.members[self.island]
        self._updates = shared.updates[own.start : own.stop]
        self._optimizers = shared.optimizers(index)
        model.live_in(shared.vectors[self.island])

    def pull(self, model: Model) -> int:  # noqa: ARG002  (its vector is the island's)
        self._islands.pause()
        self._begun = total(self._updates)
        return self._islands.version()

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,  # noqa: ARG002  (only updates of the island count)
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        self._islands.pause()
        self._optimizers[part].step(gradient, lr)
        self._islands.ledger.applied(self.index, total(self._updates) - self._begun)
        self._islands.count(self.index)
        if self._islands.islands > 1:
            self.exchange()

    def exchange(self) -> None:
        """Called after each update, if there are several islands. Must not wait for anything."""


class Watch:
    """Whether another learner has stopped: killed, ended, or hanging."""

    def __init__(self, updates: Array, own: int) -> None:
        self._updates, self._own = updates, own
        self._seen, self._since = (-1, -1), 0  # the other and its updates; own updates then

    def has_stopped(self, other: int) -> bool:
        seen, mine = (other, int(self._updates[other])), int(self._updates[self._own])
        if seen != self._seen:
            self._seen, self._since = seen, mine
        return mine - self._since > PATIENCE
