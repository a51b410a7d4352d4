"""Hogwild++: Hogwild inside islands; a token carries differences round a ring (Zhang et al. 2016).

Each island has a vector and a snapshot of it. The islands form a directed ring with one token. The
learner that has the token makes `hold_updates` updates; then the difference between its island's
vector and the snapshot goes to the next island, times beta, its own vector moves towards that
island's, and the token is passed on. The root of beta^n + beta = 1 makes a difference that went
round the ring arrive whole: so the islands add up what they learn, and do not average it.

There is no lock, and nothing waits. The token is one number in shared memory, how often it was
passed. It decides the island and, since the members of an island take turns, the learner. If that
learner makes no update while another makes 64, because it was killed or has ended, that one
exchanges in its place and passes the token on. So the token is never lost. A learner killed in the
middle of an exchange may have sent a difference that is sent again. For an island of another node
main's node exchanges, when its mirror comes and it is its turn (`mirrors.py`).

It differs from the paper (Zhang, Hsieh and Akella, "HogWild++", ICDM 2016) and its code in that
gradients are dense, exchanges work on the whole vector, the difference is not multiplied by the
decaying step size, and a turn begins with its updates and ends with the exchange (the distance
between two exchanges is the same).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyhands.strategies.islands import (
    INT,
    IslandOptions,
    Islands,
    Member,
    Watch,
    fill,
    stacked,
)
from manyhands.strategies.mirrors import AwayMember
from manyhands.types import Backend, Model, State, option, restored

FIRST = 8  # the first turn is as many times as long


@dataclass(frozen=True)
class Config(IslandOptions):
    hold_updates: int = option(
        0,
        "updates of a learner with the token before it passes it on; 0: 64, from 5 islands 16, "
        "from 11 islands 4, as in the authors' code",
        low=0,
    )
    tolerance: float = option(
        0.0, "differences of a parameter up to this size wait for a later turn", low=0
    )


def beta_of(islands: int) -> float:
    """The root of beta^n + beta = 1, by bisection."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if middle**islands + middle < 1 else (low, middle)
    return low


class HogwildPlusPlus(Islands):
    name = "hogwild_plus_plus"

    def __init__(
        self,
        config: Config,
        *,
        backend: Backend,
        vector: Tensor,
        learners: int = 1,
        island_size: int = 1,
        **given: Any,
    ) -> None:
        super().__init__(
            config, backend=backend, vector=vector, learners=learners, island_size=island_size,
            **given,
        )  # fmt: skip
        self.beta = beta_of(self.islands)
        self.pull_share = 1 - self.beta ** (self.islands - 1)  # the paper's lambda
        self.tolerance = config.tolerance
        from_paper = 64 if self.islands <= 4 else 16 if self.islands <= 10 else 4
        self.hold_updates = config.hold_updates or from_paper
        self.snapshots = [backend.share(vector, elsewhere=0) for _ in self.members]
        self.passes = backend.allocate((1,), INT, elsewhere=0)  # how often the token was passed
        self._seen = self._since = -1  # by main's node, for islands elsewhere: as a member has them
        self.share_with_other_nodes(backend, vector)

    def join(self, model: Model, index: int) -> AwayMember | TokenMember:
        return self.away_member(model, index) or TokenMember(self, model, index)

    def turn_of(self, passes: int) -> int:
        """Updates of the learner that has the token."""
        return self.hold_updates * (FIRST if passes == 0 else 1)

    def exchange_for(self, island: int) -> None:
        passes = int(self.passes[0])
        if self.mirrors is None or self.islands == 1 or passes % self.islands != island:
            return
        mine = int(self.mirrors.counts.rows()[self.holder(passes), 0])
        if passes != self._seen:
            self._seen, self._since = passes, mine
        if mine - self._since >= self.turn_of(passes):
            self.exchange(island)
            self.passes[0] = passes + 1

    def holder(self, passes: int) -> int:
        """The learner that has the token after so many passes."""
        rounds, island = divmod(passes, self.islands)
        members = self.members[island]
        return members[rounds % len(members)]

    @torch.no_grad()
    def exchange(self, island: int) -> None:
        """What an island does when it has the token. Vectors may change meanwhile: so it adds."""
        here, snapshot = self.vectors[island], self.snapshots[island]
        following = self.vectors[(island + 1) % self.islands]
        learned = here - snapshot
        if self.tolerance:
            learned[learned.abs() <= self.tolerance] = 0
        towards = (following - snapshot).mul_(self.pull_share)
        following.add_(learned, alpha=self.beta)
        here.add_(towards).add_(learned, alpha=self.beta - 1)
        snapshot.add_(towards).add_(learned, alpha=self.beta)

    def own_state(self) -> State:
        return {"snapshots": stacked(self.snapshots), "passes": int(self.passes[0])}

    def restore_own(self, own: State) -> None:
        fill(self.snapshots, own, "snapshots" if "snapshots" in own else "vectors")
        self.passes[0] = restored.count({"passes": 0, **own}, "passes")


class TokenMember(Member):
    def __init__(self, shared: HogwildPlusPlus, model: Model, index: int) -> None:
        super().__init__(shared, model, index)
        self._shared, self._watch = shared, Watch(shared.updates, index)
        self._seen = self._since = -1  # the newest number of passes, and the own updates then

    def exchange(self) -> None:
        shared = self._shared
        passes, mine = int(shared.passes[0]), int(shared.updates[self.index])
        if passes != self._seen:
            self._seen, self._since = passes, mine
        holder = shared.holder(passes)
        if holder == self.index:
            is_due = mine - self._since >= shared.turn_of(passes)
        else:
            is_due = self._watch.has_stopped(holder)
        if is_due:
            shared.exchange(passes % shared.islands)
            shared.passes[0] = passes + 1


make = HogwildPlusPlus
