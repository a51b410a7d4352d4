"""Prioritized sweeping: pairs whose values are most wrong come first (Moore and Atkeson 1993).

A queue holds pairs of a state and an action by their absolute TD error, if it is above
`memory.threshold`. A draw takes the first pair and its newest outcome. The predecessors of a pair
are the pairs that led to its state. After a pair is learned, the errors of its predecessors are
computed. So a large error spreads backwards. If the queue is empty, no update is made.

It follows Sutton and Barto (2018, section 8.4), with one difference: a pair that is already in the
queue gets its new error, even if that is smaller.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from torch import Tensor

from manyhands.memory import Config
from manyhands.memory.planning import Planned, Planning
from manyhands.memory.replay import ReplayLanes
from manyhands.memory.storage.lanes import Lanes
from manyhands.memory.storage.outcomes import UNKNOWN
from manyhands.memory.storage.sampling import Sample
from manyhands.types import Array, Batch, Demand, EnvSpec, State, restored

LEAVES_OUT_UPDATES = True  # while the queue is empty
Errors = Callable[[Sample], Array]


class Sweeping(Planning):
    at_once = 1  # what is learned decides what is drawn next

    def __init__(self, lanes: Lanes, config: Config, rng: np.random.Generator) -> None:
        super().__init__(lanes, config, rng)
        pairs = len(self.outcomes.newest)
        self.errors: Errors | None = None  # of rows, by the present values
        self.priorities = np.zeros(pairs)  # 0: not in the queue
        self._queue: list[tuple[float, int]] = []  # -priority and pair; some are out of date
        self._leads_to = np.full(pairs, UNKNOWN)  # the state after each pair
        self._predecessors: dict[int, set[int]] = defaultdict(set)  # of each state
        self._changed: set[int] = set()  # states whose values have changed
        self._linked = True

    def sample(
        self,
        demand: Demand,
        size: int,
        steps_seen: int,  # noqa: ARG002
        *,
        again: bool = False,  # noqa: ARG002
    ) -> Sample | None:
        outcomes = self.outcomes
        fresh = outcomes.take_in()
        self._link(fresh if self._linked else outcomes.newest[outcomes.known()])
        self._queue_pairs(self._touched(fresh), demand)
        pairs = self._first(size)
        if not pairs:
            return None
        # A batch has as many rows as ever: the algorithm averages those of one pair.
        rows = outcomes.newest.take(np.resize(np.array(pairs), size))
        return outcomes.sample(rows, demand.gamma)

    def _link(self, rows: Array) -> None:
        outcomes, self._linked = self.outcomes, True
        after = outcomes.next_states(rows).tolist()
        for pair, state in zip(outcomes.pairs(rows).tolist(), after, strict=True):
            before = self._leads_to[pair]
            if before != state:
                self._predecessors[before].discard(pair)
                self._predecessors[state].add(pair)
                self._leads_to[pair] = state

    def _touched(self, fresh: Array) -> Array:
        """Pairs whose error is not known: new outcomes, and predecessors of changed states."""
        touched = {*self.outcomes.pairs(fresh).tolist()}
        for state in self._changed:
            touched |= self._predecessors[state]
        self._changed.clear()
        pairs = np.array(sorted(touched), np.int64)
        return pairs[self.outcomes.newest[pairs] >= 0]

    def _queue_pairs(self, pairs: Array, demand: Demand) -> None:
        if not pairs.size:
            return
        assert self.errors is not None
        # Rounded up to a power of two, so that few sizes of buffers are kept.
        rows = np.resize(self.outcomes.newest[pairs], 1 << (len(pairs) - 1).bit_length())
        errors = self.errors(self.outcomes.sample(rows, demand.gamma))[: len(pairs)]
        self.priorities[pairs] = np.where(errors > self.config.threshold, errors, 0.0)
        for pair, priority in zip(pairs.tolist(), self.priorities[pairs].tolist(), strict=True):
            if priority:
                heapq.heappush(self._queue, (-priority, pair))

    def _first(self, size: int) -> list[int]:
        """Takes up to `size` pairs from the queue."""
        pairs = list[int]()
        while self._queue and len(pairs) < size:
            priority, pair = heapq.heappop(self._queue)
            if self.priorities[pair] == -priority:
                self.priorities[pair] = 0.0
                pairs += [pair] * bool(self.outcomes.newest[pair] >= 0)
        return pairs

    def report(self, rows: Array, priorities: Tensor) -> None:  # noqa: ARG002
        self._changed.update(self.outcomes.states(rows).tolist())

    def state(self) -> State:
        changed = np.array(sorted(self._changed), np.int64)
        return {**super().state(), "priorities": self.priorities.copy(), "changed": changed}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.priorities[:], self._leads_to[:], self._linked = 0.0, UNKNOWN, False
        self._predecessors.clear()
        self._changed.clear()
        if state:
            largest = float(np.finfo(np.float32).max)
            kept = restored.between(state, "priorities", self.priorities, 0, largest)
            like, most = np.zeros(len(state["changed"]), np.int64), self.lanes.spec.states - 1
            self._changed.update(restored.between(state, "changed", like, 0, most).tolist())
            self.priorities[:] = kept
        waiting = np.flatnonzero(self.priorities)
        self._queue = [(-float(self.priorities[pair]), int(pair)) for pair in waiting]
        heapq.heapify(self._queue)


class Swept(Planned):
    def due(self, demand: Demand, targets: Callable[[Batch], Batch]) -> Iterator[Batch]:
        assert isinstance(self.planning, Sweeping)
        self.planning.errors = lambda sample: errors_of(targets(self._buffers.fill(sample)))
        return super().due(demand, targets)


def errors_of(batch: Batch) -> Array:
    """The column that a tabular algorithm's `targets` adds."""
    errors: Array = batch.columns["error"].numpy(force=True)
    return errors


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    replay_lanes: ReplayLanes | None = None,
) -> Swept:
    given = {"columns": columns, "rng": rng, "replay_lanes": replay_lanes}
    return Swept(spec, config, planning=Sweeping, **given)  # type: ignore[arg-type]
