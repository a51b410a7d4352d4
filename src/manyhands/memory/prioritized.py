"""Prioritized replay: rows with larger TD errors are drawn more often (Schaul et al. 2016).

The probability of a row is (|TD error| + A_LITTLE)^alpha over the sum of all rows. A new row has
the largest priority seen so far. If rows carry their actor's values (`q_taken`, `q_best`), a new
row has the actor's own error instead (Ape-X, Horgan et al. 2018). Every batch is stratified. The
importance weights are (1 / (N * probability))^beta, divided by the largest weight of the draw; the
paper divides by the largest of the whole memory. beta rises to 1 over agent steps.
Up to `AT_ONCE` batches are drawn together. New TD errors change the priorities at the next draw.

Rows that start no transition have priority 0: closing rows, the newest rows until their n-step sum
is known, and rows that are about to be overwritten or whose stack is no longer whole. The tree is
brought up to date in bulk, before each draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor

from manyhands.memory import Config
from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.lanes import CLOSING, Lanes
from manyhands.memory.storage.priorities import SharedPriorities
from manyhands.memory.storage.sampling import Sample, Sampler
from manyhands.memory.storage.sumtree import MOST, SumTree
from manyhands.types import VALUES, Array, Demand, EnvSpec, State

A_LITTLE = 1e-6  # as in OpenAI Baselines: a row with no error is still drawn sometimes
FRESH = -1.0  # stands for the priority of a new row until its actor's error is computed


class Prioritized(Sampler):
    """The sampler of a prioritized `Replay`."""

    tree_kind = SumTree

    def __init__(
        self,
        lanes: Lanes,
        config: Config,
        rng: np.random.Generator,
        priorities: SharedPriorities | None = None,
    ) -> None:
        """`priorities`: those of the process that this one replaces."""
        self.lanes, self.config, self._rng = lanes, config, rng
        self.priorities = priorities or SharedPriorities(lanes.spec.lanes, lanes.rows)
        self.tree = self.tree_kind(lanes.spec.lanes * lanes.rows, self.priorities.leaves)
        self._least = 1.0
        self._valued = set(lanes.columns) >= VALUES
        self._reports: list[tuple[Array, Array]] = []  # rows and errors not in the tree yet

    def beta(self, steps_seen: int) -> float:
        """Rises linearly to 1 over `beta_steps`. Constant if that is 0."""
        start, steps = self.config.beta, self.config.beta_steps
        return start + (1.0 - start) * min(1.0, steps_seen / steps) if steps else start

    def sample(
        self, demand: Demand, size: int, steps_seen: int, *, again: bool = False
    ) -> Sample | None:
        self.settle()
        self._add_new_rows(demand)
        rows = self.tree.draw(size, self._rng, strata=1 if again else demand.batch_size)
        if not rows.size:
            return None
        ahead = self.lanes.n_step(rows, demand.n_step, demand.gamma, all_known=True)
        chance = self.tree.leaves.take(rows)
        # The largest weight of a draw is that of its least likely row; N and the sum cancel.
        if not again:
            self._least = np.minimum.reduce(chance)
        weight = np.minimum(self._least / chance, 1.0) ** self.beta(steps_seen)
        return Sample(rows, ahead.reward, ahead.discount, ahead.bootstrap, weight)

    def _add_new_rows(self, demand: Demand) -> None:
        """Removes the rows overwritten since the last draw and adds those written since."""
        fresh = self.lanes.written - self.priorities.taken
        most = int(np.maximum.reduce(fresh))
        if most:
            ids, entering = self._entering(fresh, most, demand.n_step)
            if self._valued:
                self._value(ids, entering, demand)
            self.tree.write(ids, entering)
            self.priorities.taken[:] = self.lanes.written  # after all else

    def _value(self, ids: Array, entering: Array, demand: Demand) -> None:
        """Gives new rows the absolute TD error of their actor (Ape-X)."""
        fresh = np.flatnonzero(entering == FRESH)
        rows = ids[fresh]
        ahead = self.lanes.n_step(rows, demand.n_step, demand.gamma, all_known=True)
        flat = self.lanes.flat
        target = ahead.reward + ahead.discount * flat["q_best"].take(ahead.bootstrap)
        error = target - flat["q_taken"].take(rows)
        entering[fresh] = self._scaled(np.abs(error))

    def _of_fresh(self) -> float:
        """The priority of a new row. FRESH is replaced by `_value`."""
        return FRESH if self._valued else self.priorities.largest

    def _entering(self, fresh: Array, most: int, n: int) -> tuple[Array, Array]:
        """Rows and their new priorities, after each lane wrote `fresh` rows, at most `most`.

        All of these rows lie around their lane's write position. New rows enter if they are known,
        and so do those of the n rows before them that were not known at the last draw.
        """
        ids, behind, known = self.lanes.recent(most + n, n)
        before = self.tree.leaves.take(ids)
        held = before * (behind > fresh[:, None])  # the others belonged to rows overwritten since
        entering = np.where(known, np.where(held > 0, held, self._of_fresh()), 0.0)
        if behind[-1] < 1:  # overwritten next: they stay only in lanes that do not overwrite yet
            entering[:, behind < 1] = before[:, behind < 1] * ~self.lanes.overwrites[:, None]
        return ids.reshape(-1), entering.reshape(-1)

    def report(self, rows: Array, priorities: Tensor) -> None:
        """Kept until the next draw: all reports of a draw enter the tree together."""
        self._reports.append((rows.copy(), np.abs(priorities.numpy(force=True))))

    def settle(self) -> None:
        """Writes the reports into the tree. Of a row reported twice the last counts."""
        if not self._reports:
            return
        rows, errors = self._reports[0]
        if len(self._reports) > 1:
            rows, errors = map(np.concatenate, zip(*self._reports, strict=True))
        self._reports.clear()
        scaled = self._scaled(errors)
        largest = float(np.maximum.reduce(scaled))
        if not largest <= MOST:  # or NaN
            # A row with a NaN error is drawn again soon, but sets no new largest priority.
            scaled = np.where(
                np.isfinite(scaled), np.minimum(scaled, MOST), self.priorities.largest
            )
            largest = float(scaled.max())
        kept = self.tree.leaves.take(rows) > 0  # others were overwritten meanwhile
        self.tree.write(rows, scaled * kept)
        self.priorities.largest = max(self.priorities.largest, largest)

    def _scaled(self, errors: Array) -> Array:
        scaled: Array = (errors + A_LITTLE) ** self.config.alpha
        return scaled

    def state(self) -> State:
        self.settle()
        return {}

    def restore(self, state: State) -> None:  # noqa: ARG002
        """From the shared priorities, which were restored before."""
        self._reports.clear()
        # A closing row written since the last draw still has the priority of the row it overwrote.
        self.priorities.forget(self.lanes.flat["action"] == CLOSING)
        self.tree = self.tree_kind(self.tree.size, self.priorities.leaves)


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    replay_lanes: ReplayLanes | None = None,
) -> Replay:
    sampler = partial(fastest(), priorities=replay_lanes.priorities if replay_lanes else None)
    return Replay(
        spec, config, columns=columns, rng=rng, replay_lanes=replay_lanes, sampler=sampler
    )


def fastest() -> type[Prioritized]:
    """The compiled sampler if numba is installed: the same draws, faster."""
    try:
        from manyhands.memory.storage.compiled import Compiled
    except (ImportError, RuntimeError):  # RuntimeError: numba finds no folder for its cache
        return Prioritized
    return Compiled
