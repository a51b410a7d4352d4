"""Rings: slots of whole rollouts between one writer and one reader. What `queue.py` is made of.

Each slot holds one rollout and whatever it takes to learn from it, so that neighbours share
nothing. A ring has one `Writer` and one `Reader`, and needs no lock: the writer fills a slot and
then publishes it by raising `head`; the reader, who may read from many rings, gives it back by
raising `tail`. Slots between the two belong to the reader, all others to the writer. (That what
was written first is seen first is x86's promise, and that of every backend here.)

A writer that was killed leaves a slot that was never published, and its successor begins that one
again. Its first rows begin episodes, whatever came before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands import types
from manyhands.memory import layout
from manyhands.memory.lanes import Allocate
from manyhands.types import (
    Array,
    BadRequest,
    Batch,
    EnvSpec,
    Failure,
    QueueDemand,
    Rows,
)


class Slot(NamedTuple):
    """One rollout of n lanes. Step t was taken on the `stack` frames from place t on."""

    frame: Array  # [steps + stack, n, *frame]; the last is what is to be acted on next
    first: Array  # [steps + stack, n] bool; this frame began an episode
    action: Array  # [steps, n], and so the others
    reward: Array
    discount: Array
    ended: Array
    last: Array  # [steps, n, *frame] where an episode was cut short, its true last frame
    columns: Mapping[str, Array]


class Ring:
    """One actor's slots, in memory that its writer and its reader both see."""

    def __init__(
        self,
        spec: EnvSpec,
        demand: QueueDemand,
        *,
        columns: Mapping[str, str],
        slots: int = 0,
        allocate: Allocate = np.zeros,
    ) -> None:
        """`slots`: other than the demand says."""
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
        """Where the rollout of that number lies."""
        found = {name: array[number % self.slots] for name, array in self.arrays.items()}
        columns = {name: found.pop(name) for name in self.columns}
        return Slot(**found, columns=columns)


class Writer:
    """An actor's hold on its ring. Who follows a dead one makes another."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.taken = 0  # steps taken of the rollout being written
        self.fresh = True  # nothing that came before is known

    def has_room(self) -> bool:
        """Whether `extend` may be called; if not the actor is to wait, and that is counted."""
        room = self.taken > 0 or self.ring.waiting < self.ring.slots
        if not room:
            self.ring.waits[0] += 1
        return room

    def extend(self, rows: Rows) -> None:
        """One step of every lane; the rollout's last one publishes it."""
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
        """The frames before the rollout are those that the one before ended with."""
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
        """An episode that was given up, and not by its environment, ends with what was to come."""
        at = self.taken + self.ring.spec.stack - 1
        lanes = np.flatnonzero(first & ~slot.ended[self.taken - 1])
        if lanes.size:
            slot.last[self.taken - 1, lanes] = slot.frame[at, lanes]
            slot.ended[self.taken - 1, lanes] = True

    def _show(self, slot: Slot, rows: Rows) -> None:
        """What followed the step: the next frame, and an episode's last one if it is asked for.

        A step of which nothing is known ends its episode, and is worth what it was taken on.
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
    """The learner's hold on the rings of all actors."""

    def __init__(self, rings: Sequence[Ring], demand: QueueDemand) -> None:
        self.rings = tuple(rings)
        most = sum(ring.slots for ring in self.rings)
        if most < demand.batch_rollouts:
            raise BadRequest(
                f"{demand.batch_rollouts} rollouts to a batch, but no more than {most} may wait",
                "allow more to wait for each actor, or use more actors",
            )
        self.turn = 0  # the ring to be looked at first
        self._newest: tuple[Tensor, types.Rollout] | None = None
        self._observation = np.empty(0)
        self._ones, self._none = torch.ones(0), torch.zeros(0)

    @property
    def waiting(self) -> int:
        return sum(ring.waiting for ring in self.rings)

    def due(
        self, demand: QueueDemand, targets: Callable[[types.Rollout], types.Rollout]
    ) -> Iterator[Batch]:
        """As many batches as waited when it was asked; each rollout once, each ring in order."""
        for _ in range(self.waiting // demand.batch_rollouts):
            self._newest = self._read(demand)
            yield self._batch(*self._newest, targets)

    def _read(self, demand: QueueDemand) -> tuple[Tensor, types.Rollout]:
        """All is copied before a slot is given back."""
        out, stack = self._out(demand), self.rings[0].spec.stack
        rollouts = []
        for side, slot in enumerate(self._take(demand.batch_rollouts)):
            observations(slot, stack, out[:, side])
            rollouts.append(rollout_of(slot, stack, demand.gamma))
        return torch.from_numpy(out).flatten(0, 2), side_by_side(rollouts)

    def _take(self, many: int) -> Iterator[Slot]:
        """The next ones, rings by turns. Each is given back when the next is asked for."""
        for _ in range(many):
            order = [(self.turn + i) % len(self.rings) for i in range(len(self.rings))]
            number = next(i for i in order if self.rings[i].waiting)
            ring = self.rings[number]
            yield ring.slot(int(ring.tail[0]))
            ring.tail[0] += 1
            self.turn = (number + 1) % len(self.rings)

    def _out(self, demand: QueueDemand) -> Array:
        """Used again for every batch."""
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


def rollout_of(slot: Slot, stack: int, gamma: float) -> types.Rollout:
    """A copy, without what the steps were taken on."""
    step, lane, after = what_followed(slot, stack)
    return types.Rollout(
        action=torch.from_numpy(slot.action.astype(np.int64)),
        reward=torch.from_numpy(slot.reward.copy()),
        discount=torch.from_numpy(slot.discount * np.float32(gamma)),
        ended=torch.from_numpy(slot.ended.copy()),
        after=torch.from_numpy(after),
        after_at=torch.from_numpy(step * slot.action.shape[1] + lane),
        columns={name: torch.from_numpy(column.copy()) for name, column in slot.columns.items()},
    )


def side_by_side(rollouts: Sequence[types.Rollout]) -> types.Rollout:
    """What were lanes of one are lanes of all."""
    if len(rollouts) == 1:
        return rollouts[0]
    lanes, many = rollouts[0].action.shape[1], len(rollouts)

    def beside(tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(tensors), 1)

    places = [
        (one.after_at // lanes * many + side) * lanes + one.after_at % lanes
        for side, one in enumerate(rollouts)
    ]
    return types.Rollout(
        action=beside(one.action for one in rollouts),
        reward=beside(one.reward for one in rollouts),
        discount=beside(one.discount for one in rollouts),
        ended=beside(one.ended for one in rollouts),
        after=torch.cat([one.after for one in rollouts]),
        after_at=torch.cat(places),
        columns={n: beside(one.columns[n] for one in rollouts) for n in rollouts[0].columns},
    )


def observations(slot: Slot, stack: int, out: Array) -> None:
    """Rebuilds what every step was taken on; frames before a `first` are zeros."""
    steps = len(slot.action)
    if stack == 1:
        out[:] = slot.frame[:steps]
        return
    for place in range(stack):
        out[:, :, place] = slot.frame[place : place + steps]
    first = np.stack([slot.first[place : place + steps] for place in range(1, stack)], 2)
    _blank(out, first)


def what_followed(slot: Slot, stack: int) -> tuple[Array, Array, Array]:
    """Steps, lanes and observations after the steps that bootstrap from outside the rollout."""
    cut = slot.ended & (slot.discount > 0)
    cut[-1] = slot.discount[-1] > 0
    step, lane = np.nonzero(cut)
    place = step[:, None] + np.arange(1, stack + 1)
    out, first = slot.frame[place, lane[:, None]], slot.first[place[:, 1:], lane[:, None]]
    ended = np.flatnonzero(slot.ended[step, lane])  # what follows there is another episode's
    out[ended, -1] = slot.last[step[ended], lane[ended]]
    if stack == 1:
        return step, lane, out[:, 0]
    first[ended, -1] = False
    _blank(out, first)
    return step, lane, out


def _blank(out: Array, first: Array) -> None:
    """out [..., stack, *frame], first [..., stack - 1]: whether each frame but the oldest began."""
    if first.any():  # a frame is of an earlier episode if any later one was a `first`
        before = np.logical_or.accumulate(first[..., ::-1], axis=-1)[..., ::-1]
        out[np.nonzero(before)] = 0
