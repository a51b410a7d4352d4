"""Prioritized replay: what surprised more is drawn more often (Schaul et al. 2016, proportional).

A row's chance is (|TD error| + a little)^alpha over the sum of all. A row nobody has learned from
yet has the largest priority seen so far; or, where rows carry what their actor thought them worth
(`q_taken`, `q_best`), that actor's own error, as in Ape-X (Horgan et al. 2018). Every batch is
stratified; the importance weights, which undo the bias, are (1 / (N * chance))^beta over the
largest of their draw, so they only ever lower a gradient (the paper's are over the largest of all
the memory). beta rises to 1, in agent steps.
Some batches are drawn at once (`replay.AT_ONCE`): what one of them reports counts from the next
draw on.

Rows that start no transition have priority 0: closing rows, the newest rows until what follows
them is known (n steps later), and rows about to be overwritten or whose stack no longer is whole.
The tree learns of all that when it is drawn from next, in bulk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor

from manyhands.memory import Config
from manyhands.memory.lanes import Lanes
from manyhands.memory.marks import Marks
from manyhands.memory.replay import Choice, Places, Replay
from manyhands.memory.sumtree import MOST, SumTree
from manyhands.types import Array, Demand, EnvSpec, State

A_LITTLE = 1e-6  # OpenAI baselines: a row learned perfectly is still drawn now and then


class Prioritized:
    """A chooser of `Replay`: which rows, and with what weights."""

    tree_kind = SumTree

    def __init__(
        self,
        lanes: Lanes,
        config: Config,
        rng: np.random.Generator,
        marks: Marks | None = None,
    ) -> None:
        """`marks`: of another one of these lanes, which this one follows."""
        self.lanes, self.config, self._rng = lanes, config, rng
        self.marks = marks or Marks(lanes.spec.lanes, lanes.rows)
        self.tree = self.tree_kind(lanes.spec.lanes * lanes.rows, self.marks.leaves)
        self._least = 1.0
        self._valued = {"q_taken", "q_best"} <= set(lanes.columns)
        self._reports: list[tuple[Array, Array]] = []  # rows, errors the tree has not heard of

    def beta(self, steps_seen: int) -> float:
        """Linearly up to 1; constant without steps to rise over."""
        start, steps = self.config.beta, self.config.beta_steps
        return start + (1.0 - start) * min(1.0, steps_seen / steps) if steps else start

    def choose(
        self, demand: Demand, size: int, steps_seen: int, *, again: bool = False
    ) -> Choice | None:
        self.settle()
        self._take_in(demand)
        rows = self.tree.draw(size, self._rng, strata=1 if again else demand.batch_size)
        if not rows.size:
            return None
        ahead = self.lanes.ahead(rows, demand.n_step, demand.gamma)
        chance = self.tree.leaves.take(rows)
        # The largest weight of a draw is that of its least likely row; N and the sum cancel.
        if not again:
            self._least = np.minimum.reduce(chance)
        weight = np.minimum(self._least / chance, 1.0) ** self.beta(steps_seen)
        return Choice(rows, *ahead, weight)

    def _take_in(self, demand: Demand) -> None:
        """Forgets the rows that left since the last draw and takes in those that came."""
        fresh = self.lanes.written - self.marks.taken
        most = int(np.maximum.reduce(fresh))
        if most:
            ids, entering = self._entering(fresh, most, demand.n_step)
            if self._valued:
                self._value(ids, entering, demand)
            self.tree.write(ids, entering)
            self.marks.taken[:] = self.lanes.written  # after all else

    def _value(self, ids: Array, entering: Array, demand: Demand) -> None:
        """Rows nobody has learned from, by how wrong their actor was about them (Ape-X)."""
        fresh = np.flatnonzero(entering == self.marks.largest)
        rows = ids[fresh]
        reward, discount, bootstrap = self.lanes.ahead(rows, demand.n_step, demand.gamma)
        flat = self.lanes.flat
        error = reward + discount * flat["q_best"].take(bootstrap) - flat["q_taken"].take(rows)
        entering[fresh] = self._scaled(np.abs(error))

    def _entering(self, fresh: Array, most: int, n: int) -> tuple[Array, Array]:
        """Rows and their priorities, where lanes wrote `fresh` rows each, `most` at the most.

        All of them lie about the place where a lane is written. Rows written since come in if they
        are known, and so do those of the n before that were not known then.
        """
        ids, behind, known = self.lanes.recent(most + n, n)
        before = self.tree.leaves.take(ids)
        held = before * (behind > fresh[:, None])  # the others were of rows overwritten since
        entering = np.where(held > 0, held, self.marks.largest) * known
        if behind[-1] < 1:  # next to be overwritten: they stay only where nothing is, as yet
            entering[:, behind < 1] = before[:, behind < 1] * ~self.lanes.overwrites[:, None]
        return ids.reshape(-1), entering.reshape(-1)

    def report(self, rows: Array, priorities: Tensor) -> None:
        """Heard of when next drawn from: all of a draw together."""
        self._reports.append((rows.copy(), np.abs(priorities.numpy(force=True))))

    def settle(self) -> None:
        """Hears what was reported. Of a row reported twice the last counts."""
        if not self._reports:
            return
        rows, errors = self._reports[0]
        if len(self._reports) > 1:
            rows, errors = map(np.concatenate, zip(*self._reports, strict=True))
        self._reports.clear()
        scaled = self._scaled(errors)
        largest = float(np.maximum.reduce(scaled))
        if not largest <= MOST:  # or no number at all
            # What cannot be measured is looked at again soon, but sets no new mark.
            scaled = np.where(np.isfinite(scaled), np.minimum(scaled, MOST), self.marks.largest)
            largest = float(scaled.max())
        kept = self.tree.leaves.take(rows) > 0  # others were overwritten meanwhile
        self.tree.write(rows, scaled * kept)
        self.marks.largest = max(self.marks.largest, largest)

    def _scaled(self, errors: Array) -> Array:
        scaled: Array = (errors + A_LITTLE) ** self.config.alpha
        return scaled

    def state(self) -> State:
        self.settle()
        return self.marks.state()

    def restore(self, state: State) -> None:
        self._reports.clear()
        self.marks.restore(state)
        self.tree = self.tree_kind(self.tree.size, self.marks.leaves)


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    places: Places | None = None,
) -> Replay:
    chooser = partial(fastest(), marks=places.marks if places else None)
    return Replay(spec, config, columns=columns, rng=rng, places=places, chooser=chooser)


def fastest() -> type[Prioritized]:
    """The compiled one where numba is installed: the same draws, sooner."""
    try:
        from manyhands.memory.compiled import Compiled
    except (ImportError, RuntimeError):  # the latter: numba finds no folder for what it compiled
        return Prioritized
    return Compiled
