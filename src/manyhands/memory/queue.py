"""Queue: whole rollouts, in order, from actors to a learner.

Every actor has a ring of slots (`rings.py`). When all its slots are full the actor waits, which is
counted. Nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from manyhands import types
from manyhands.memory import Config, queue_slots
from manyhands.memory.storage import rings
from manyhands.memory.storage.rings import HEAD, Reader, Ring, Writer
from manyhands.types import (
    Array,
    Backend,
    Batch,
    EnvSpec,
    Failure,
    QueueDemand,
    Rows,
    State,
    restored,
)


class Queues:
    """The rings of all actors, each read by one learner."""

    def __init__(
        self,
        spec: EnvSpec,
        demand: QueueDemand,
        *,
        members: int,
        learners: int,
        columns: Mapping[str, str],
        backend: Backend,
    ) -> None:
        """Uses enough slots that the actors of each learner can fill its batch."""
        self.demand = demand
        slots = max(demand.slots, -(-demand.batch_rollouts // (members // learners)))
        kinds = rings.kinds_of(spec, demand, columns, slots, members)
        self._stream = backend.stream(kinds, writers=members, fields=rings.FIELDS)
        self.rings = [
            Ring(spec, demand, columns=columns, stream=self._stream, writer=member)
            for member in range(members)
        ]

    def to_write(self) -> Queues:
        return self

    def own(self, member: int) -> Writer:
        return Writer(self.rings[member])

    def inbox(self, learner: int, learners: int) -> Inbox:
        """The memory of one of the learners, which share the rings evenly."""
        return Inbox(self.rings[learner::learners], self.demand)

    def state(self) -> State:
        """Call it while nothing writes. Arrays are views: write them before the next rollout."""
        heads, tails = (table.rows().copy() for table in (self._stream.heads, self._stream.tails))
        return {"arrays": dict(self._stream.arrays), "heads": heads, "tails": tails}

    def restore(self, state: State) -> bool:
        """False: the state is of rings of another shape, and nothing was restored."""
        saved = {name: (array.shape, array.dtype) for name, array in state["arrays"].items()}
        arrays, stream = self._stream.arrays, self._stream
        if saved != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
            return False
        like = stream.heads.rows()
        heads = restored.between(state, "heads", like, 0, restored.MOST)
        tails = restored.between(state, "tails", like, 0, restored.MOST)
        waiting = heads[:, rings.HEAD] - tails[:, rings.HEAD]
        if not ((waiting >= 0) & (waiting <= self.rings[0].slots)).all():
            raise ValueError("more rollouts wait than there are slots")
        _refuse_strange_rollouts(state["arrays"], self.rings[0].spec)
        for name, array in arrays.items():
            array[:] = state["arrays"][name]
        for member in range(len(heads)):
            stream.heads.row(member)[:] = heads[member]
            stream.tails.row(member)[:] = tails[member]
        return True


class Inbox(Reader):
    """A learner's memory: the rollouts of its actors. It may repeat the last while none wait."""

    torn_rows = 0  # slots are never overwritten while they are read

    def __init__(self, own: Sequence[Ring], demand: QueueDemand) -> None:
        super().__init__(own, demand)
        self.batches = 0  # drawn so far
        self._again = 0  # how often the last batch may still be repeated

    def due(
        self, demand: QueueDemand, targets: Callable[[types.Rollout], types.Rollout]
    ) -> Iterator[Batch]:
        fresh = super().due(demand, targets)
        if self._newest is not None and self._again and self.waiting < demand.batch_rollouts:
            self._again -= 1
            self.batches += 1
            yield self._batch(*self._newest, targets)
            return
        for batch in fresh:
            self._again = demand.again
            self.batches += 1
            yield batch

    def report(self, batch: Batch, priorities: Tensor) -> None:
        """A queue does not use priorities."""


class Queue:
    """A ring whose writer and reader are the same worker."""

    torn_rows = 0  # no other process writes here

    def __init__(
        self,
        spec: EnvSpec,
        config: Config,  # noqa: ARG002  (the algorithm sets the size)
        *,
        demand: QueueDemand,
        columns: Mapping[str, str],
        rng: np.random.Generator,  # noqa: ARG002  (nothing is random)
    ) -> None:
        self.ring = Ring.alone(spec, demand, columns=columns, slots=queue_slots(demand))
        self.writer, self.reader = Writer(self.ring), Reader([self.ring], demand)

    @property
    def capacity(self) -> int:
        return self.ring.slots * self.ring.rollout_size

    @property
    def filled(self) -> int:
        return self.ring.waiting * self.ring.rollout_size + self.writer.taken * self.ring.spec.lanes

    def extend(self, rows: Rows) -> None:
        self.writer.extend(rows)

    def due(
        self, demand: QueueDemand, targets: Callable[[types.Rollout], types.Rollout]
    ) -> Iterator[Batch]:
        return self.reader.due(demand, targets)

    def report(self, batch: Batch, priorities: Tensor) -> None:
        """A queue does not use priorities."""

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """Views, not copies: write them to disk before the next `extend`."""
        ring, writer = self.ring, self.writer
        head, tail = int(ring.head[HEAD]), int(ring.tail[HEAD])
        counts = {"head": head, "tail": tail, "taken": writer.taken}
        return {"lanes": dict(ring.arrays), "fresh": writer.fresh, **counts}

    def restore(self, state: State) -> None:
        """Without its slots the current rollout is dropped and the next one begins."""
        kept, ring, writer = state.get("lanes"), self.ring, self.writer
        if kept is None:
            ring.head[HEAD] = ring.tail[HEAD] = writer.taken = 0
            writer.fresh = True
            return
        shapes = {name: array.shape for name, array in ring.arrays.items()}
        if shapes != {name: array.shape for name, array in kept.items()}:
            raise Failure(
                "the saved queue has rollouts of another shape than this one's",
                "Resume with the environments, rollout_steps and batch_rollouts of the saved run.",
            )
        _refuse_strange_rollouts(kept, ring.spec)
        for name, array in ring.arrays.items():
            array[:] = restored.array(kept, name, array)
        head = restored.count(state, "head")
        tail = restored.count(state, "tail", most=head)
        if head - tail > ring.slots:
            raise ValueError(f"{head - tail} rollouts wait, there are {ring.slots} slots")
        ring.head[HEAD], ring.tail[HEAD] = head, tail
        writer.taken = restored.count(state, "taken", most=ring.steps - 1)
        writer.fresh = bool(state["fresh"])


def _refuse_strange_rollouts(arrays: Mapping[str, Array], spec: EnvSpec) -> None:
    """Refuses indices and numbers that no run could have written."""
    restored.between(arrays, "action", arrays["action"], 0, spec.actions - 1)
    restored.between(arrays, "discount", arrays["discount"], 0, 1)
    for name, array in arrays.items():
        restored.finite(array, name)


make = Queue
