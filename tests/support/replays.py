"""Filling a replay memory from the toy world, and drawing from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from manyhands.backends.inprocess import InProcess
from manyhands.memory import rows_per_lane
from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.types import Batch, Demand
from support.reference_world import COLUMNS, World


def shared_of(world: World, capacity: int = 200, readers: Sequence[range] = ()) -> SharedLanes:
    """The lanes of the only worker of a run, which saves and restores them."""
    rows, backend = rows_per_lane(world.spec, capacity), InProcess()
    return SharedLanes(
        world.spec, rows, members=1, columns=COLUMNS, prioritized=readers, backend=backend
    )


def lanes_in(shared: SharedLanes) -> ReplayLanes:
    return ReplayLanes.alone(shared.own(0), shared.priorities(0))


def wants(
    batch_size: int = 8, every: float = 1.0, warmup: int = 0, n: int = 1, gamma: float = 0.9
) -> Demand:
    return Demand(batch_size, every, warmup, n, gamma)


def batches(memory: Replay, demand: Demand) -> Iterator[Batch]:
    """As a learner without targets gets them."""
    return memory.due(demand, lambda drawn: drawn)


def play(
    world: World,
    memory: Replay,
    steps: int,
    seed: int = 0,
    ends: Sequence[float] = (0.1, 0.3, 0.02),
) -> None:
    """Random play whose lanes end, and so fill, at different rates."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        chance = rng.random(world.spec.lanes)
        often = zip(chance, ends, strict=False)
        events = [("terminate" if c < e else "life" if c > 0.97 else "go") for c, e in often]
        memory.extend(world.step(events))
