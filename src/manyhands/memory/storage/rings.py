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
from manyhands.memory.storage.slots import Slot, observations, rollout_of, side_by_side
from manyhands.types import (
    Array,
    BadRequest,
    Batch,
    EnvSpec,
    Failure,
    QueueDemand,
    Rows,
    State,
    Stream,
    restored,
)

HEAD, WAITS = range(2)  # of a writer's row: rollouts published, and how often it had no room
FIELDS = 2
Kinds = dict[str, tuple[tuple[int, ...], np.dtype]]


def kinds_of(
    spec: EnvSpec, demand: QueueDemand, columns: Mapping[str, str], slots: int, rings: int
) -> Kinds:
    """Shape and type of the arrays of some rings. The first axis is the ring."""
    kinds = layout(spec, columns)
    taken = {"ended", "last"} & set(columns)
    if taken:
        raise BadRequest(f"a remembered column may not be called {sorted(taken)[0]!r}")
    kinds |= {"ended": np.dtype(np.bool_), "last": kinds["frame"]}
    made: Kinds = {}
    for name, kind in kinds.items():
        places = demand.steps + (spec.stack if name in ("frame", "first") else 0)
        made[name] = (rings, slots, places, spec.lanes, *kind.shape), kind.base
    return made


class OwnTable:
    """A table whose writer and reader are the same worker."""

    def __init__(self, rows: int, fields: int) -> None:
        self._array = np.zeros((rows, fields), np.int64)

    def row(self, index: int) -> Array:
        row: Array = self._array[index]
        return row

    def rows(self) -> Array:
        return self._array


class OwnStream:
    """A stream whose writer and reader are the same worker."""

    def __init__(self, kinds: Kinds) -> None:
        self.arrays = {name: np.zeros(*kind) for name, kind in kinds.items()}
        self.heads, self.tails = OwnTable(1, FIELDS), OwnTable(1, FIELDS)

    def overwritten(self) -> Array:
        return self.heads.rows()

    def has_room(self, writer: int) -> bool:  # noqa: ARG002
        return True


class Ring:
    """One actor's slots in a stream, between its writer and its reader."""

    def __init__(
        self,
        spec: EnvSpec,
        demand: QueueDemand,
        *,
        columns: Mapping[str, str],
        stream: Stream,
        writer: int = 0,
    ) -> None:
        self.spec, self.steps, self.columns = spec, demand.steps, tuple(columns)
        self.arrays = {name: array[writer] for name, array in stream.arrays.items()}
        self.slots = len(self.arrays["action"])
        self._stream, self._writer = stream, writer

    @classmethod
    def alone(
        cls, spec: EnvSpec, demand: QueueDemand, *, columns: Mapping[str, str], slots: int = 0
    ) -> Ring:
        """For a writer and a reader in one process. `slots`: instead of the demand's."""
        kinds = kinds_of(spec, demand, columns, slots or demand.slots, 1)
        return cls(spec, demand, columns=columns, stream=OwnStream(kinds))

    @property
    def head(self) -> Array:
        """The writer's row: only it may ask for it."""
        return self._stream.heads.row(self._writer)

    @property
    def tail(self) -> Array:
        """What the reader took: only it may ask for it."""
        return self._stream.tails.row(self._writer)

    @property
    def waits(self) -> int:
        return int(self._stream.heads.rows()[self._writer, WAITS])

    @property
    def waiting(self) -> int:
        """Rollouts published and not yet taken, as they are known here."""
        # Tails first: then the heads, if they are newer, are never behind them.
        taken = int(self._stream.tails.rows()[self._writer, HEAD])
        return int(self._stream.heads.rows()[self._writer, HEAD]) - taken

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
            self.ring.head[WAITS] += 1
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
            self.ring.head[HEAD] += 1  # after all else

    def _slot(self) -> Slot:
        return self.ring.slot(int(self.ring.head[HEAD]))

    def _begin(self) -> None:
        """Copies the last frames of the rollout before: the first stacks need them."""
        ring = self.ring
        if ring.waiting >= ring.slots:
            raise Failure(
                f"all {ring.slots} slots of the queue are full; a step was refused",
                "ask `has_room` before every step",
            )
        slot, before = self._slot(), ring.slot(int(ring.head[HEAD]) - 1)
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

    def state(self) -> State:
        """What its successor needs beside the slots, to end the rollout that was begun."""
        return {"taken": self.taken, "fresh": self.fresh}

    def restore(self, state: State) -> None:
        self.taken = restored.count(state, "taken", most=self.ring.steps - 1)
        self.fresh = bool(state["fresh"])


class Reader:
    """A learner's end of the rings of its actors."""

    def __init__(self, rings: Sequence[Ring], demand: QueueDemand) -> None:
        self.rings = tuple(rings)
        most = sum(ring.slots for ring in self.rings)
        if most < demand.batch_rollouts:
            raise BadRequest(
                f"a batch has {demand.batch_rollouts} rollouts, but at most {most} may wait",
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
            yield ring.slot(int(ring.tail[HEAD]))
            ring.tail[HEAD] += 1
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
