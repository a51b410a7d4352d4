"""Replay: keeps rows in lanes and draws batches from them; uniformly unless given a sampler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from manyhands.memory import Config, rows_per_lane
from manyhands.memory.storage.batches import BatchBuffers
from manyhands.memory.storage.lanes import Lanes, NStep
from manyhands.memory.storage.priorities import SharedPriorities
from manyhands.memory.storage.sampling import AT_ONCE as AT_ONCE
from manyhands.memory.storage.sampling import Sample, Sampler
from manyhands.types import Array, BadRequest, Batch, Demand, EnvSpec, Rows, State, restored

TRIES = 8  # rounds of rejection before all rows are searched; more than one is rare


class Uniform(Sampler):
    """Draws every row that starts a transition with equal probability, with replacement."""

    def __init__(self, lanes: Lanes, config: Config, rng: np.random.Generator) -> None:  # noqa: ARG002
        self.lanes, self._rng = lanes, rng
        self._ones = np.empty(0, np.float32)  # uniform weights, for the largest draw so far

    def sample(
        self,
        demand: Demand,
        size: int,
        steps_seen: int,  # noqa: ARG002
        *,
        again: bool = False,  # noqa: ARG002
    ) -> Sample | None:
        """Proposes rows and rejects those that start no transition: about one per episode."""
        accepted: list[Sample] = []
        for _ in range(TRIES):
            sample = self._accept(
                self.lanes.reader.propose(size + size // 8 + 2, self._rng), demand
            )
            if not accepted and len(sample.rows) >= size:
                return Sample(*(part[:size] for part in sample))
            accepted.append(sample)
            if sum(len(some.rows) for some in accepted) >= size:
                parts = zip(*accepted, strict=True)
                return Sample(*(np.concatenate(part)[:size] for part in parts))
        ids = self.lanes.drawable(demand.n_step)
        return self._accept(self._rng.choice(ids, size), demand) if ids.size else None

    def _accept(self, ids: Array, demand: Demand) -> Sample:
        """The rows of `ids` that start a transition, and what follows them."""
        ahead = self.lanes.n_step(ids, demand.n_step, demand.gamma)
        if not ahead.known.all():
            ids, ahead = ids[ahead.known], NStep(*(part[ahead.known] for part in ahead))
        if len(ids) > len(self._ones):
            self._ones = np.ones(len(ids), np.float32)
        ones = self._ones[: len(ids)]
        return Sample(ids, ahead.reward, ahead.discount, ahead.bootstrap, ones)


class ReplayLanes(NamedTuple):
    """The lanes that a memory writes to and draws from."""

    written: Lanes
    drawn: Lanes  # the same lanes, or those of all workers
    priorities: SharedPriorities | None = None  # of the drawn lanes, if they outlive the reader

    @classmethod
    def alone(cls, lanes: Lanes, priorities: SharedPriorities | None = None) -> ReplayLanes:
        return cls(lanes, lanes, priorities)


class Replay:
    """Draws one batch for every `steps_per_update` agent steps after the warm-up.

    How many are due follows from counters alone. Updates that fell due while nothing could be
    drawn are skipped, not made up for in a burst. A memory that was emptied warms up again.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: Config,
        *,
        columns: Mapping[str, str],
        rng: np.random.Generator,
        replay_lanes: ReplayLanes | None = None,
        sampler: Callable[[Lanes, Config, np.random.Generator], Sampler] = Uniform,
    ) -> None:
        """`config.capacity` is the number of rows of this memory: one worker's share of all."""
        rows = rows_per_lane(spec, config.capacity)
        own = replay_lanes or ReplayLanes.alone(Lanes(spec, rows, columns=columns))
        self.lanes, self.drawn = own.written, own.drawn
        self.steps_seen = 0
        self.elsewhere = 0  # agent steps recorded in other memories: schedules count them too
        self.empty_at = 0  # steps seen when this memory was last empty
        self.updates_drawn = 0
        self.updates_skipped = 0
        self.torn_rows = 0  # rows overwritten while they were read, and drawn again
        self._rng = rng
        self.sampler = sampler(self.drawn, config, rng)
        self._buffers = BatchBuffers(self.drawn)

    @property
    def capacity(self) -> int:
        return self.lanes.capacity

    @property
    def filled(self) -> int:
        return self.lanes.filled

    def extend(self, rows: Rows) -> None:
        self.lanes.extend(rows)
        self.steps_seen += len(rows.action)

    def due(self, demand: Demand, targets: Callable[[Batch], Batch]) -> Iterator[Batch]:
        self._refuse_too_small(demand)
        while (due := self._updates_due(demand)) > 0:
            size = demand.batch_size * min(due, self.sampler.at_once)
            drawn = self._draw(demand, size) if self._warm(demand) else None
            if drawn is None:
                self.updates_skipped += due
                return
            for batch in self._buffers.cut(targets(drawn), demand.batch_size):
                self.updates_drawn += 1
                yield batch

    def _draw(self, demand: Demand, size: int, *, again: bool = False) -> Batch | None:
        """Draws and copies `size` rows. Returns None if there is nothing to draw from."""
        seen, some_whole = self.steps_seen + self.elsewhere, False
        while not some_whole:
            self.drawn.refresh()
            sample = self.sampler.sample(demand, size, seen, again=again)
            if sample is None:
                return None
            batch = self._buffers.fill(sample, first_step=demand.first_step)
            torn = self.drawn.torn(sample.rows)
            if not torn.size:
                return batch
            self.torn_rows += torn.size
            some_whole = torn.size < size
        # Rounded up to a power of two, so that few sizes of buffers are kept.
        more = min(1 << (torn.size - 1).bit_length(), size - 1)
        if self._draw(demand, more, again=True) is None:
            return None
        self._buffers.replace(size, torn, more)
        return batch

    def report(self, batch: Batch, priorities: Tensor) -> None:
        self.sampler.report(batch.rows, priorities)

    # --- How many ---------------------------------------------------------------------------

    def count_steps(self, *, elsewhere: int, seen: int | None = None) -> None:
        """Sets the steps that schedules count: those other memories recorded, and those `seen`
        here, where other processes write the rows.
        """
        self.elsewhere = elsewhere
        self.steps_seen = self.steps_seen if seen is None else seen

    def resume_from(self, steps_seen: int, demand: Demand, drawn: int | None = None) -> None:
        """Continues with the rows of a process that died, after it drew `drawn` batches.

        Without that number nothing is due yet.
        """
        self.drawn.refresh()
        self.empty_at = 0 if self.drawn.filled else steps_seen
        if drawn is None:
            self.steps_seen = steps_seen
            self.updates_skipped = max(0, self._updates_due(demand))
            return
        self.steps_seen = min(steps_seen, math.ceil(demand.steps_for(drawn)))
        self.updates_skipped = drawn

    def has_due(self, demand: Demand) -> bool:
        return self._updates_due(demand) > 0

    def _updates_due(self, demand: Demand) -> int:
        in_all = demand.updates_due(max(self.steps_seen, demand.warmup_steps))
        return in_all - self.updates_drawn - self.updates_skipped

    def _warm(self, demand: Demand) -> bool:
        fresh = self.steps_seen - self.empty_at
        enough = min(demand.batch_size, self.capacity)
        # Every step fills a row, so the rows seldom need to be counted.
        return fresh >= demand.warmup_steps and (fresh >= enough or self.filled >= enough)

    def _refuse_too_small(self, demand: Demand) -> None:
        least = self.lanes.spec.stack + demand.n_step
        if self.lanes.rows < least:
            raise BadRequest(
                f"a lane of {self.lanes.rows} rows never holds a whole {demand.n_step}-step sum",
                f"Set memory.capacity to at least {least * self.lanes.spec.lanes} a worker.",
            )

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """Without the rows and their priorities, which `SharedLanes` saves."""
        return {
            "rng": self._rng.bit_generator.state,
            "steps_seen": self.steps_seen,
            "empty_at": self.empty_at,
            "updates_drawn": self.updates_drawn,
            "updates_skipped": self.updates_skipped,
            "sampler": self.sampler.state(),
        }

    def restore(self, state: State) -> None:
        """After the rows were restored. Without rows the memory warms up again."""
        self.steps_seen = restored.count(state, "steps_seen")
        self.drawn.refresh()
        empty_at = restored.count(state, "empty_at", most=self.steps_seen)
        self.empty_at = empty_at if self.drawn.filled else self.steps_seen
        self.sampler.restore(state.get("sampler", {}))
        self._rng.bit_generator.state = state["rng"]
        self.updates_drawn = restored.count(state, "updates_drawn")
        self.updates_skipped = restored.count(state, "updates_skipped")


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    replay_lanes: ReplayLanes | None = None,
) -> Replay:
    return Replay(spec, config, columns=columns, rng=rng, replay_lanes=replay_lanes)
