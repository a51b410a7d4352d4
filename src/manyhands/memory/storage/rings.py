"""Rings: slots of whole rollouts between one writer and one reader. `queue.py` is built on them.

Each slot holds one rollout and all that is needed to learn from it; slots share nothing. A ring
has one `Writer` and one `Reader`, and needs no lock. The writer fills a slot and publishes it by
raising `head`. The reader, which may read many rings, gives it back by raising `tail`. Slots
between the two belong to the reader, all others to the writer. (x86 and every backend here make
writes visible in the order they were made.)

A writer that is killed leaves its slot unpublished. Its successor writes that slot again, and its
first rows begin episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from manyhands import types
from manyhands.memory import layout
from manyhands.memory.storage.lanes import Allocate
from manyhands.memory.storage.slots import Slot, observations, rollout_of, side_by_side
from manyhands.types import (
    Array,
    BadRequest,
    Batch,
    EnvSpec,
    Failure,
    QueueDemand,
    Rows,
)


class Ring:
    """One actor's slots, in memory that both its writer and its reader see."""

    def __init__(
        self,
        spec: EnvSpec,
        demand: QueueDemand,
        *,
        columns: Mapping[str, str],
        slots: int = 0,
        allocate: Allocate = np.zeros,
    ) -> None:
        """`slots`: overrides the number in the demand."""
        self.spec, self.steps, self.slots = spec, demand.steps, slots or demand.slots
        self.columns = tuple(columns)
        kinds = layout(spec, columns)
        taken = {"ended", "last"} & set(columns)
        if taken:
            raise BadRequest(f"a remembered column may not be called {sorted(taken)[0]!r}")
        kinds |= {"ended": np.dtype(np.bool_), "last": kinds["frame"]}
        self.arrays: dict[str, Array] = {}
        for name, kind in kinds.items():
            places = self.steps + (spec.stack if name in ("frame", "first") else 0)
            shape = (self.slots, places, spec.lanes, *kind.shape)
            self.arrays[name] = allocate(shape, kind.base)
        self.head, self.tail, self.waits = (allocate((1,), np.dtype(np.int64)) for _ in range(3))

    @property
    def waiting(self) -> int:
        """Rollouts published and not yet taken."""
        return int(self.head[0] - self.tail[0])

    @property
    def rollout_size(self) -> int:
        return self.steps * self.spec.lanes

    def slot(self, number: int) -> Slot:
        """The slot of the rollout with that number."""
        found = {name: array[number % self.slots] for name, array in self.arrays.items()}
        columns = {name: found.pop(name) for name in self.columns}
        return Slot(**found, columns=columns)


class Writer:
    """An actor's end of its ring. The process that replaces a dead actor makes another."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.capacity = self.filled = 0  # a queue keeps nothing for long
        self.taken = 0  # steps written of the current rollout
        self.fresh = True  # nothing is known of earlier steps

    @property
    def mid_rollout(self) -> bool:
        return self.taken > 0

    def has_room(self) -> bool:
        """Whether `extend` may be called. If not, the actor must wait, which is counted."""
        room = self.taken > 0 or self.ring.waiting < self.ring.slots
        if not room:
            self.ring.waits[0] += 1
        return room

    def extend(self, rows: Rows) -> None:
        """Writes one step of every lane. The last step of a rollout publishes it."""
        if self.taken == 0:
            self._begin()
        slot, t, at = self._slot(), self.taken, self.taken + self.ring.spec.stack - 1
        if t:
            self._cut(slot, rows.first)
        slot.frame[at] = rows.frame
        slot.first[at] = rows.first | self.fresh
        slot.action[t], slot.reward[t], slot.discount[t] = rows.action, rows.reward, rows.discount
        for name, column in slot.columns.items():
            column[t] = rows.columns[name]
        self._show(slot, rows)
        self.taken, self.fresh = t + 1, False
        if self.taken == self.ring.steps:
            self.taken = 0
            self.ring.head[0] += 1  # after all else

    def _slot(self) -> Slot:
        return self.ring.slot(int(self.ring.head[0]))

    def _begin(self) -> None:
        """Copies the last frames of the rollout before: the first stacks need them."""
        ring = self.ring
        if ring.waiting >= ring.slots:
            raise Failure(
                f"all {ring.slots} places of a queue wait to be learned from; a step was refused",
                "ask `has_room` before every step",
            )
        slot, before = self._slot(), ring.slot(int(ring.head[0]) - 1)
        if not self.fresh:
            slot.frame[: ring.spec.stack] = before.frame[ring.steps :]
            slot.first[: ring.spec.stack] = before.first[ring.steps :]

    def _cut(self, slot: Slot, first: Array) -> None:
        """Ends an episode that its environment did not end, with the frame that came next."""
        at = self.taken + self.ring.spec.stack - 1
        lanes = np.flatnonzero(first & ~slot.ended[self.taken - 1])
        if lanes.size:
            slot.last[self.taken - 1, lanes] = slot.frame[at, lanes]
            slot.ended[self.taken - 1, lanes] = True

    def _show(self, slot: Slot, rows: Rows) -> None:
        """Writes what followed the step: the next frame, and a truncated episode's last frame.

        A broken step ends its episode and bootstraps from its own observation.
        """
        at, t = self.taken + self.ring.spec.stack, self.taken
        ended = rows.ended if rows.broken is None else rows.ended | rows.broken
        slot.frame[at], slot.first[at], slot.ended[t] = rows.next_frame, ended, ended
        cut = rows.ended & (rows.discount > 0)
        if np.count_nonzero(cut):
            slot.last[t, cut] = rows.last_frame[cut[rows.ended]]
        if rows.broken is not None:
            slot.last[t, rows.broken] = rows.frame[rows.broken]


class Reader:
    """A learner's end of the rings of its actors."""

    def __init__(self, rings: Sequence[Ring], demand: QueueDemand) -> None:
        self.rings = tuple(rings)
        most = sum(ring.slots for ring in self.rings)
        if most < demand.batch_rollouts:
            raise BadRequest(
                f"{demand.batch_rollouts} rollouts to a batch, but no more than {most} may wait",
                "allow more to wait for each actor, or use more actors",
            )
        self.turn = 0  # the ring to look at first
        self._newest: tuple[Tensor, types.Rollout] | None = None
        self._observation = np.empty(0)
        self._ones, self._none = torch.ones(0), torch.zeros(0)

    @property
    def waiting(self) -> int:
        return sum(ring.waiting for ring in self.rings)

    def due(
        self, demand: QueueDemand, targets: Callable[[types.Rollout], types.Rollout]
    ) -> Iterator[Batch]:
        """Yields the batches that waited when called: each rollout once, each ring in order."""
        for _ in range(self.waiting // demand.batch_rollouts):
            self._newest = self._read(demand)
            yield self._batch(*self._newest, targets)

    def _read(self, demand: QueueDemand) -> tuple[Tensor, types.Rollout]:
        """Copies every slot before it is given back."""
        out, stack = self._out(demand), self.rings[0].spec.stack
        rollouts = []
        for side, slot in enumerate(self._take(demand.batch_rollouts)):
            observations(slot, stack, out[:, side])
            rollouts.append(rollout_of(slot, stack, demand.gamma))
        return torch.from_numpy(out).flatten(0, 2), side_by_side(rollouts)

    def _take(self, many: int) -> Iterator[Slot]:
        """The next slots, from each ring in turn. Each is given back when the next is taken."""
        for _ in range(many):
            order = [(self.turn + i) % len(self.rings) for i in range(len(self.rings))]
            number = next(i for i in order if self.rings[i].waiting)
            ring = self.rings[number]
            yield ring.slot(int(ring.tail[0]))
            ring.tail[0] += 1
            self.turn = (number + 1) % len(self.rings)

    def _out(self, demand: QueueDemand) -> Array:
        """A buffer that every batch uses again."""
        spec = self.rings[0].spec
        shape = (demand.steps, demand.batch_rollouts, spec.lanes, *spec.observation_shape)
        if self._observation.shape != shape:
            self._observation = np.empty(shape, spec.frame_dtype)
            self._ones = torch.ones(shape[0] * shape[1] * shape[2])
        return self._observation

    def _batch(
        self,
        observation: Tensor,
        rollout: types.Rollout,
        targets: Callable[[types.Rollout], types.Rollout],
    ) -> Batch:
        seen = targets(rollout)
        return Batch(
            observation=observation,
            action=seen.action.flatten(),
            reward=seen.reward.flatten(),
            discount=seen.discount.flatten(),
            next_observation=self._none,
            weight=self._ones,
            rows=np.arange(len(observation)),
            columns={name: column.flatten(0, 1) for name, column in seen.columns.items()},
        )
