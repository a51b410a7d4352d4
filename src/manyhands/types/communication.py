"""How a strategy's learners share parameters, in words that a simulation understands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Sharing:
    """What is exclusive, what waits, what is sent. Costs are not said here: they are measured.

    A strategy's `Config` has one as `sharing`; `manyhands plan` simulates it.
    """

    locks: Literal["nothing", "vector", "pair"] = "nothing"
    """What a pull and a push hold: nothing, the vector of all, or their own replica. With "pair" a
    push also holds a neighbour's replica, and averages both."""

    in_step: bool = False
    """Whether a push waits for the pushes of all learners, which make one update together."""

    shards: int = 0
    """Processes that apply what is pushed, each a slice. The learner does not wait for them."""

    asks: bool = False
    """Whether a pull waits for the shards' answers, which come after all pushes before it."""

    island: int = 0
    """Learners that change one vector; 0: all, or none. Only their updates make one stale."""

    push_every: int = 1  # gradients
    pull_every: int = 1  # updates

    sends: Literal["nothing", "shards", "sum", "pair"] = "nothing"
    """What crosses between nodes: nothing, as it works on one node only; vectors to and from the
    shards; each node's share of a sum over all; or a vector to a neighbour and back."""
