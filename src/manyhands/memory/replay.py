"""Replay: rows kept in lanes, transitions drawn uniformly, with replacement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.memory import Config, rows_per_lane
from manyhands.memory.lanes import Allocate, Lanes
from manyhands.types import Algorithm, Array, BadRequest, Batch, Demand, EnvSpec, Rows, State

TRIES = 8  # rounds of drawing before all rows are looked through; seldom more than one is needed


class Choice(NamedTuple):
    """Rows chosen, and what follows them."""

    rows: Array
    reward: Array
    discount: Array
    bootstrap: Array


class Replay:
    """Draws as many batches as the steps seen pay for.

    What is owed follows from counters alone: one update for every `steps_per_update` steps after
    the warm-up. What fell due while nothing could be drawn is forgiven, not made up for in a
    burst; and a memory that came back empty warms up again.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: Config,
        *,
        columns: Mapping[str, str],
        rng: np.random.Generator,
        allocate: Allocate = np.zeros,
    ) -> None:
        """`config.capacity` is what this memory keeps: one worker's share if there are many."""
        rows = rows_per_lane(spec, config.capacity)
        self.lanes = Lanes(spec, rows, columns=columns, allocate=allocate)
        self.steps_seen = 0
        self.empty_at = 0  # steps seen when this memory was last empty
        self.updates_drawn = 0
        self.updates_forgiven = 0
        self._rng = rng
        self._batches: dict[int, tuple[Batch, dict[str, Array]]] = {}

    @property
    def capacity(self) -> int:
        return self.lanes.spec.lanes * self.lanes.rows

    @property
    def filled(self) -> int:
        return self.lanes.filled

    def extend(self, rows: Rows) -> None:
        self.lanes.extend(rows)
        self.steps_seen += len(rows.action)

    def due(self, algorithm: Algorithm) -> Iterator[Batch]:
        demand = algorithm.demand
        self._refuse_too_small(demand)
        while (owed := self._owed(demand)) > 0:
            choice = self._choose(demand) if self._warm(demand) else None
            if choice is None:
                self.updates_forgiven += owed
                return
            self.updates_drawn += 1
            yield self._batch(choice)

    def report(self, batch: Batch, priorities: Tensor) -> None:
        """Uniform draws have no use for priorities."""

    # --- How many ---------------------------------------------------------------------------

    def _owed(self, demand: Demand) -> int:
        if self.steps_seen < demand.warmup_steps:
            return 0
        earned = math.floor((self.steps_seen - demand.warmup_steps) / demand.steps_per_update)
        return earned - self.updates_drawn - self.updates_forgiven

    def _warm(self, demand: Demand) -> bool:
        fresh = self.steps_seen - self.empty_at
        enough = min(demand.batch_size, self.capacity)
        return fresh >= demand.warmup_steps and self.filled >= enough

    def _refuse_too_small(self, demand: Demand) -> None:
        least = self.lanes.spec.stack + demand.n_step
        if self.lanes.rows < least:
            raise BadRequest(
                f"a lane of {self.lanes.rows} rows never holds a whole {demand.n_step}-step sum",
                f"Set memory.capacity to at least {least * self.lanes.spec.lanes} a worker.",
            )

    # --- Which ------------------------------------------------------------------------------

    def _choose(self, demand: Demand) -> Choice | None:
        """Rows uniformly drawn from those that start a transition; None if there are none.

        Draws from all rows and rejects: one in an episode or so. Some are drawn to spare.
        """
        size = demand.batch_size
        found: list[Choice] = []
        for _ in range(TRIES):
            choice = self._try(self._propose(size + size // 8 + 2), demand)
            if not found and len(choice.rows) >= size:
                return Choice(*(part[:size] for part in choice))
            found.append(choice)
            if sum(len(some.rows) for some in found) >= size:
                return Choice(*(np.concatenate(parts)[:size] for parts in zip(*found, strict=True)))
        ids = self.lanes.drawable(demand.n_step)
        return self._try(self._rng.choice(ids, size), demand) if ids.size else None

    def _propose(self, size: int) -> Array:
        """Ids of rows, those that start no transition among them."""
        oldest, count = self.lanes.candidates()
        end = np.cumsum(count)
        if not end[-1]:
            return np.empty(0, np.int64)
        place = self._rng.integers(end[-1], size=size)
        lane = np.searchsorted(end, place, side="right")
        return self.lanes.id_of(lane, place + (oldest - end + count)[lane])

    def _try(self, ids: Array, demand: Demand) -> Choice:
        ahead = self.lanes.n_step(ids, demand.n_step, demand.gamma)
        known = ahead.known
        return Choice(
            ids[known], ahead.reward[known], ahead.discount[known], ahead.bootstrap[known]
        )

    # --- The batch --------------------------------------------------------------------------

    def _batch(self, choice: Choice) -> Batch:
        size = len(choice.rows)
        if size not in self._batches:
            self._batches[size] = self._allocate(size)
        batch, buffers = self._batches[size]
        self.lanes.observations(choice.rows, buffers["observation"])
        self.lanes.observations(choice.bootstrap, buffers["next_observation"])
        buffers["reward"][:] = choice.reward
        buffers["discount"][:] = choice.discount
        buffers["rows"][:] = choice.rows
        for name in ("action", *self.lanes.columns):
            buffers[name][:] = self.lanes.flat[name][choice.rows]
        buffers["weight"][:] = 1
        return batch

    def _allocate(self, size: int) -> tuple[Batch, dict[str, Array]]:
        """A batch whose tensors are views of NumPy buffers, made once and used for every draw."""
        spec, flat = self.lanes.spec, self.lanes.flat
        buffers: dict[str, Array] = {
            "observation": np.zeros((size, *spec.observation_shape), spec.frame_dtype),
            "action": np.zeros(size, np.int64),
            "reward": np.zeros(size, np.float32),
            "discount": np.zeros(size, np.float32),
            "next_observation": np.zeros((size, *spec.observation_shape), spec.frame_dtype),
            "weight": np.ones(size, np.float32),
        }
        tensors = {name: torch.from_numpy(buffer) for name, buffer in buffers.items()}
        columns = {
            name: np.zeros((size, *flat[name].shape[1:]), flat[name].dtype)
            for name in self.lanes.columns
        }
        rows = np.zeros(size, np.int64)
        remembered = {name: torch.from_numpy(column) for name, column in columns.items()}
        batch = Batch(**tensors, rows=rows, columns=remembered)
        return batch, {**buffers, **columns, "rows": rows}

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """`lanes` are views: see `Lanes.state`. Without them `restore` starts empty."""
        return {
            "lanes": self.lanes.state(),
            "rng": self._rng.bit_generator.state,
            "steps_seen": self.steps_seen,
            "empty_at": self.empty_at,
            "updates_drawn": self.updates_drawn,
            "updates_forgiven": self.updates_forgiven,
        }

    def restore(self, state: State) -> None:
        if state.get("lanes") is not None:
            self.lanes.restore(state["lanes"])
            self.empty_at = state["empty_at"]
        else:
            self.lanes.written[:] = 0
            self.empty_at = state["steps_seen"]
        self._rng.bit_generator.state = state["rng"]
        self.steps_seen = state["steps_seen"]
        self.updates_drawn = state["updates_drawn"]
        self.updates_forgiven = state["updates_forgiven"]


make = Replay
