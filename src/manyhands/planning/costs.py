"""What the parts of a run cost: seconds of one core, unless the name says that they are waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

BYTES = 4  # of a parameter


@dataclass(frozen=True)
class SharingCosts:
    """Of one strategy, for each gradient."""

    pull_s: float = 0.0
    push_s: float = 0.0
    serve_s: float = 0.0  # of all shards together
    peer_s: float = 0.0  # of a push, for each other learner on the node that it waits with


@dataclass(frozen=True)
class ApartCosts:
    """Of actors apart from learners."""

    pull_s: float = 0.0  # of an actor, for each turn: looking for published weights
    publish_s: float = 0.0  # of the first learner, for each update
    ahead_turns: float = 0.0  # how far all actors together may be ahead of the learners
    ahead_turns_each: float = 0.0  # and further for each actor
    publish_every: int = 1  # updates


@dataclass(frozen=True)
class Costs:
    """Of a task and a recipe on one machine. A turn is one step of all environments of a worker."""

    lanes: int  # environments of a worker
    act_s: float  # a turn
    step_s: float  # a turn: the environments
    wait_s: float  # a turn: the environments wait so long without using a core
    record_s: float  # a turn: everything else
    draw_s: float  # a gradient: its batch
    gradient_s: float
    optimizer_s: float  # a gradient: the optimizer's step
    updates_per_turn: float
    parameters: int
    rollout_turns: int = 1  # updates are due every so many turns
    row_bytes: int = 0  # of what a turn records, in all environments
    cores: int = 1  # of the machine that was measured
    contention: float = 1.0  # the same work takes so many times as long when all cores are busy
    slice_s: float = 0.004  # a process that others wait for keeps its core so long
    wake_s: float = 0.0  # from the end of a wait until the process runs
    turn_spread: tuple[float, ...] = (1.0,)  # how much turns differ: parts of the mean
    gradient_spread: tuple[float, ...] = (1.0,)  # likewise
    sharing: Mapping[str, SharingCosts] = field(default_factory=dict)  # by strategy
    apart: ApartCosts = ApartCosts()

    @property
    def turn_s(self) -> float:
        return self.act_s + self.step_s + self.record_s

    @property
    def learn_s(self) -> float:
        return self.draw_s + self.gradient_s

    @property
    def vector_bytes(self) -> int:
        return BYTES * self.parameters

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(table: Mapping[str, Any]) -> Costs:
    known = dict(table)
    known["sharing"] = {name: SharingCosts(**one) for name, one in known["sharing"].items()}
    known["apart"] = ApartCosts(**known["apart"])
    spreads = {name: tuple(known[name]) for name in ("turn_spread", "gradient_spread")}
    return Costs(**{**known, **spreads})


@dataclass(frozen=True)
class Site:
    """The machines that a run is imagined on."""

    cores: int  # of each node
    nodes: int = 1
    gbps: float = 10.0  # of each node's link, in each direction
    call_s: float = 0.0011  # a message between nodes: a call of a Ray actor, measured on loopback

    def seconds(self, size: int) -> float:
        """To send so many bytes."""
        return 8 * size / (1e9 * self.gbps)

    def __str__(self) -> str:
        if self.nodes == 1:
            return f"{self.cores} core{'s' * (self.cores > 1)}"
        return f"{self.nodes} nodes of {self.cores} cores at {self.gbps:g} Gb/s"
