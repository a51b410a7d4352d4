"""Prioritized replay: what surprised more is drawn more often (Schaul et al. 2016, proportional).

A row's chance is (|TD error| + a little)^alpha over the sum of all. A row nobody has learned from
yet has the largest priority seen so far. Every batch is stratified; the importance weights, which
undo the bias, are (1 / (N * chance))^beta over the largest of their draw, so they only ever lower
a gradient (the paper's are over the largest of all the memory). beta rises to 1, in agent steps.
Some batches are drawn at once (`replay.AT_ONCE`): what one of them reports counts from the next
draw on.

Rows that start no transition have priority 0: closing rows, the newest rows until what follows
them is known (n steps later), and rows about to be overwritten or whose stack no longer is whole.
The tree learns of all that when it is drawn from next, in bulk.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from manyhands.memory import Config
from manyhands.memory.lanes import Allocate, Lanes
from manyhands.memory.replay import Choice, Replay, follow
from manyhands.memory.sumtree import SumTree
from manyhands.types import Array, Demand, EnvSpec, State

A_LITTLE = 1e-6  # OpenAI baselines: a row learned perfectly is still drawn now and then


class Prioritized:
    """A chooser of `Replay`: which rows, and with what weights."""

    def __init__(self, lanes: Lanes, config: Config, rng: np.random.Generator) -> None:
        self.lanes, self.config, self._rng = lanes, config, rng
        self.tree = SumTree(lanes.spec.lanes * lanes.rows)
        self.largest = 1.0
        self._taken = np.zeros_like(lanes.written)  # rows of each lane the tree has heard of

    def beta(self, steps_seen: int) -> float:
        """Linearly up to 1; constant without steps to rise over."""
        start, steps = self.config.beta, self.config.beta_steps
        return start + (1.0 - start) * min(1.0, steps_seen / steps) if steps else start

    def choose(self, demand: Demand, size: int, steps_seen: int) -> Choice | None:
        self._take_in(demand.n_step)
        rows = self.tree.draw(size, self._rng, strata=demand.batch_size)
        if not rows.size:
            return None
        choice = follow(self.lanes, rows, demand)
        chance = self.tree.leaves.take(choice.rows)
        # The largest weight of a draw is that of its least likely row; N and the sum cancel.
        weight = (chance.min() / chance) ** self.beta(steps_seen)
        return choice._replace(weight=weight)

    def _take_in(self, n: int) -> None:
        """Forgets the rows that left since the last draw and takes in those that came."""
        if (self.lanes.written == self._taken).all():
            return
        oldest, count = self.lanes.candidates()
        gone = np.maximum(self.lanes.oldest(self._taken), oldest - self.lanes.rows)
        if (gone < oldest).any():
            self.tree.clear(self.lanes.ids_between(gone, oldest))
        # A row before these was known by then, or never will be.
        ids = self.lanes.ids_between(np.maximum(self._taken - n, oldest), oldest + count)
        new = (self.tree.leaves.take(ids) == 0) & self.lanes.n_step(ids, n, 1.0).known
        self.tree.set(ids[new], self.largest)
        self._taken[:] = self.lanes.written

    def report(self, rows: Array, priorities: Tensor) -> None:
        surprise = np.abs(priorities.detach().cpu().numpy()) + A_LITTLE
        # What cannot be measured is looked at again soon, but sets no new mark.
        scaled = np.where(np.isfinite(surprise), surprise**self.config.alpha, self.largest)
        kept = self.tree.leaves.take(rows) > 0  # others were overwritten meanwhile
        self.tree.set(rows[kept], scaled[kept])
        self.largest = max(self.largest, float(scaled.max()))

    def state(self) -> State:
        """`priorities` is a column like those of the lanes: a view, of what is used."""
        used = min(int(self.lanes.written.max()), self.lanes.rows)
        column = self.tree.leaves[: self.tree.size].reshape(-1, self.lanes.rows)
        return {
            "priorities": column[:, :used],
            "taken": self._taken.copy(),
            "largest": self.largest,
        }

    def restore(self, state: State) -> None:
        """Without a state every row is taken in anew, as if nobody had learned from it."""
        column = np.zeros((self.lanes.spec.lanes, self.lanes.rows))
        if state:
            column[:, : state["priorities"].shape[1]] = state["priorities"]
        self.tree.restore(column.reshape(-1))
        self._taken[:] = state.get("taken", 0)
        self.largest = float(state.get("largest", 1.0))


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    allocate: Allocate = np.zeros,
) -> Replay:
    return Replay(spec, config, columns=columns, rng=rng, allocate=allocate, chooser=Prioritized)
