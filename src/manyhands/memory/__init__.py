"""Memory: what is kept of experience and how it is drawn. One file per kind, over storage/."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manyhands.memory.storage import sumtree
from manyhands.types import (
    AnyDemand,
    Array,
    BadRequest,
    EnvSpec,
    QueueDemand,
    RolloutDemand,
    folders,
    option,
)
from manyhands.types.machine import free_bytes
from manyhands.types.sizes import human

LEAST_ROWS = 32  # per lane; fewer would hardly hold one stack and its n-step sum
HEADROOM_BYTES = 500_000_000  # left free, or a tenth of the free memory if that is more
HEADROOM_SHARE = 0.1


@dataclass(frozen=True)
class Config:
    """Section `memory`."""

    capacity: int = option(
        100_000,
        "rows kept by all workers together; an episode's last observation takes a row too",
        low=1,
    )
    scope: str = option(
        "local",
        "the experience a learner draws from: its own worker's or actors', or that of all workers",
        choices=("local", "global"),
    )
    ahead_steps: int = option(
        1_000,
        "how many agent steps actors may run ahead of learners",
        low=1,
    )
    kind: str = option(
        "auto",
        "how experience is kept and drawn; auto: the algorithm's default",
        choices=("auto", *folders.names(Path(__file__).parent)),
    )
    alpha: float = option(
        0.6, "prioritized: exponent of the TD error; 0: uniform", low=0, high=1
    )  # Schaul et al. 2016, proportional
    beta: float = option(
        0.4, "prioritized: exponent of the importance weights at the start", low=0, high=1
    )
    beta_steps: int = option(
        1_000_000, "prioritized: agent steps over which beta rises to 1; 0: constant", low=0
    )
    threshold: float = option(1e-4, "sweeping: only pairs with a larger TD error are queued", low=0)


def kind_of(config: Config, demand: AnyDemand) -> str:
    """The kind of memory, a file of this folder, for the algorithm."""
    fitting = demand.memories
    if config.kind == "auto":
        return fitting[0]
    if config.kind not in fitting:
        raise BadRequest(
            f"--memory.kind {config.kind} does not fit this algorithm",
            f"use {' or '.join(fitting)}, or leave it out",
        )
    return config.kind


def capacity_of(config: Config, demand: AnyDemand, spec: EnvSpec) -> int:
    """The rows kept: the configured capacity, or what the rollouts need."""
    if isinstance(demand, RolloutDemand):
        _refuse_empty_minibatches(spec, demand)
        return spec.lanes * rollout_rows(spec, demand)
    if isinstance(demand, QueueDemand):
        return spec.lanes * queue_rows(spec, demand)
    return config.capacity


def _refuse_empty_minibatches(spec: EnvSpec, demand: RolloutDemand) -> None:
    """The mean loss of an empty minibatch would be NaN."""
    steps = demand.steps * spec.lanes
    if demand.minibatches > steps:
        raise BadRequest(
            f"{demand.minibatches} minibatches of a rollout of {steps} steps "
            f"({spec.lanes} environments, {demand.steps} steps each): some would be empty",
            f"lower minibatches to {steps} or less, or raise rollout_steps or --envs-per-worker",
        )


def rollout_rows(spec: EnvSpec, demand: RolloutDemand) -> int:
    """Rows of a lane: every step, a closing row for each at worst, the stack, the next row."""
    return max(2 * demand.steps + spec.stack + 1, LEAST_ROWS + spec.stack)


def queue_slots(demand: QueueDemand) -> int:
    """Rollouts kept for one actor: at least a batch, or one actor could never fill it."""
    return max(demand.slots, demand.batch_rollouts)


def queue_rows(spec: EnvSpec, demand: QueueDemand) -> int:
    """Rows of a lane: for every rollout its steps, a last frame for each, and a stack."""
    return queue_slots(demand) * (2 * demand.steps + spec.stack)


def bootstraps(ended: Array, discount: Array) -> Array:
    """[t, n] bool: which steps of a rollout bootstrap from an observation outside the rollout.

    These are truncated ends, and the last steps of lanes whose episode continues. At least one
    step does, because few networks accept an empty batch; if its discount is 0, it adds nothing.
    """
    continues = discount > 0
    outside: Array = ended & continues
    outside[-1] = continues[-1]
    outside[-1, 0] |= not outside.any()
    return outside


def rows_per_lane(spec: EnvSpec, capacity: int) -> int:
    return max(capacity // spec.lanes, LEAST_ROWS + spec.stack)


def layout(spec: EnvSpec, columns: Mapping[str, str]) -> dict[str, np.dtype]:
    """The fields of a row. A vector column is a NumPy sub-array type, as "(4,)float32"."""
    taken = {"frame", "action", "reward", "discount", "first", "written"} & set(columns)
    if taken:
        raise BadRequest(f"a remembered column may not be called {sorted(taken)[0]!r}")
    return {
        "frame": np.dtype((spec.frame_dtype, spec.frame_shape)),
        "action": np.dtype(np.int32),
        "reward": np.dtype(np.float32),
        "discount": np.dtype(np.float32),
        "first": np.dtype(np.bool_),
        **{name: np.dtype(kind) for name, kind in columns.items()},
    }


def bytes_needed(
    spec: EnvSpec, capacity: int, columns: Mapping[str, str], kind: str = "replay"
) -> int:
    """Bytes of one worker's full lanes, and of the sum tree if prioritized."""
    row = sum(kind.itemsize for kind in layout(spec, columns).values())
    rows = rows_per_lane(spec, capacity)
    tree = sumtree.bytes_needed(spec.lanes * rows) if kind == "prioritized" else 0
    return spec.lanes * (rows * row + 8) + tree  # 8: the lane's row counter


def preflight(needed: int, *, capacity: int, free: int | None = None) -> str:
    """Says in one line how much the memory needs and how much is free. Refuses what does not fit.

    The system allots pages as rows are written, so without this a run would die hours later.
    """
    free = free_bytes() if free is None else free
    usable = free - max(HEADROOM_BYTES, int(HEADROOM_SHARE * free))
    line = f"memory: {capacity:,} rows take {human(needed)}; {human(free)} free"
    if needed <= usable:
        return line
    fits = max(0, math.floor(capacity * usable / needed))
    remedy = f"Set memory.capacity to {fits} or less." if fits else "Free some memory first."
    raise BadRequest(f"{line}, of which {human(max(0, usable))} can be used", remedy)
