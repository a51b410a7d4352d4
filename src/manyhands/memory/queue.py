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
from manyhands.memory.storage.lanes import Allocate
from manyhands.memory.storage.rings import Reader, Ring, Writer
from manyhands.types import Batch, EnvSpec, Failure, QueueDemand, Rows, State, restored


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
        allocate: Allocate,
    ) -> None:
        """Uses enough slots that the actors of each learner can fill its batch."""
        self.demand = demand
        slots = max(demand.slots, -(-demand.batch_rollouts // (members // learners)))
        self.rings = [
            Ring(spec, demand, columns=columns, slots=slots, allocate=allocate)
            for _ in range(members)
        ]

    def own(self, member: int) -> Writer:
        return Writer(self.rings[member])

    def inbox(self, learner: int, learners: int) -> Inbox:
        """The memory of one of the learners, which share the rings evenly."""
        return Inbox(self.rings[learner::learners], self.demand)


class Inbox(Reader):
    """A learner's memory: the rollouts of its actors. It may repeat the last while none wait."""

    torn_rows = 0  # slots are never overwritten while they are read

    def __init__(self, rings: Sequence[Ring], demand: QueueDemand) -> None:
        super().__init__(rings, demand)
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
        allocate: Allocate = np.zeros,
    ) -> None:
        slots = queue_slots(demand)
        self.ring = Ring(spec, demand, columns=columns, slots=slots, allocate=allocate)
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
        counts = {"head": int(ring.head[0]), "tail": int(ring.tail[0]), "taken": writer.taken}
        return {"lanes": dict(ring.arrays), "fresh": writer.fresh, **counts}

    def restore(self, state: State) -> None:
        """Without its slots the current rollout is dropped and the next one begins."""
        kept, ring, writer = state.get("lanes"), self.ring, self.writer
        if kept is None:
            ring.head[0] = ring.tail[0] = writer.taken = 0
            writer.fresh = True
            return
        shapes = {name: array.shape for name, array in ring.arrays.items()}
        if shapes != {name: array.shape for name, array in kept.items()}:
            raise Failure(
                "the saved queue has rollouts of another shape than this one's",
                "Resume with the environments, rollout_steps and batch_rollouts of the saved run.",
            )
        for name, array in ring.arrays.items():
            array[:] = restored.array(kept, name, array)
        head = restored.count(state, "head")
        tail = restored.count(state, "tail", most=head)
        if head - tail > ring.slots:
            raise ValueError(f"{head - tail} rollouts wait, there are {ring.slots} slots")
        ring.head[0], ring.tail[0] = head, tail
        writer.taken = restored.count(state, "taken", most=ring.steps)
        writer.fresh = bool(state["fresh"])


make = Queue
