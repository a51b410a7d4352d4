"""Imagined steps, kept for a while: a bounded memory that all learners write to and draw from.

Each learner has a ring of its own, so that no lock is needed. New steps replace the oldest, so that
mistakes of an old model do not last. A reader notes how far the rings are written, copies the steps
that it has chosen, and looks again: a step that a writer may have reached meanwhile is replaced by
another of the same draw. A learner that was killed has published only whole steps, and the learner
that replaces it continues its ring.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from manyhands.memory.storage.rings import Kinds, OwnStream
from manyhands.types import Array, Backend, EnvSpec, State, Stream, restored


def _kinds(spec: EnvSpec, writers: int, rows: int) -> Kinds:
    number, observation = np.dtype(np.float32), spec.observation_shape
    shapes = {"observation": observation, "reward": (), "discount": ()}
    shapes["next_observation"] = observation
    kinds: Kinds = {name: ((writers, rows, *shape), number) for name, shape in shapes.items()}
    whole = {"action": np.int32, "origin": np.int64}
    return kinds | {name: ((writers, rows), np.dtype(kind)) for name, kind in whole.items()}


def rows_of(capacity: int, writers: int, at_once: int) -> int:
    """Rows of one ring. `at_once`: the most steps that are written together."""
    return max(capacity // writers, 2 * at_once)


def share(spec: EnvSpec, capacity: int, *, learners: int, at_once: int, backend: Backend) -> Stream:
    """The rings of all learners, in memory that outlives each of them."""
    kinds = _kinds(spec, learners, rows_of(capacity, learners, at_once))
    return backend.stream(kinds, writers=learners, fields=1)


class ImaginedMemory:
    """One learner's end: it writes to its own ring and draws from all."""

    def __init__(self, stream: Stream, *, at_once: int, writer: int = 0) -> None:
        self._stream, self._writer, self._at_once = stream, writer, at_once
        self._rows = stream.arrays["action"].shape[1]

    @classmethod
    def alone(cls, spec: EnvSpec, capacity: int, at_once: int) -> ImaginedMemory:
        """For a learner that shares with no other."""
        stream = OwnStream(_kinds(spec, 1, rows_of(capacity, 1, at_once)))
        return cls(stream, at_once=at_once)

    def extend(self, steps: Mapping[str, Array]) -> None:
        count, head = len(steps["action"]), self._stream.heads.row(self._writer)
        at = (int(head[0]) + np.arange(count)) % self._rows
        for name, array in self._stream.arrays.items():
            array[self._writer, at] = steps[name]
        head[0] += count  # after all else

    def draw(self, chances: Array) -> Mapping[str, Array] | None:
        """A step for each number of [0, 1), each step equally likely. None: there are none."""
        heads = self._heads()
        most = self._rows - self._at_once  # a writer may be writing over the others
        ends = np.cumsum(np.minimum(heads, most))
        if not ends[-1]:
            return None
        place = (chances * ends[-1]).astype(np.int64).clip(max=ends[-1] - 1)
        ring = np.searchsorted(ends, place, side="right")
        sequence = heads[ring] - (ends[ring] - place)
        at = ring, sequence % self._rows
        drawn = {name: array[at] for name, array in self._stream.arrays.items()}
        whole = np.flatnonzero(sequence >= self._heads()[ring] + self._at_once - self._rows)
        if len(whole) == len(place):
            return drawn
        return {n: a[np.resize(whole, len(a))] for n, a in drawn.items()} if len(whole) else None

    def _heads(self) -> Array:
        heads: Array = self._stream.heads.rows()[:, 0].copy()
        return heads

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """Of the own ring. Arrays are views: write them before the next `extend`."""
        head = int(self._heads()[self._writer])
        used, arrays = min(head, self._rows), self._stream.arrays
        steps = {name: array[self._writer, :used] for name, array in arrays.items()}
        return {"head": head, "steps": steps}

    def restore(self, state: State) -> None:
        """The steps of a ring of another size are dropped."""
        head, ring = restored.count(state, "head"), self._writer
        used = min(head, self._rows)
        kept = {name: array[ring, :used] for name, array in self._stream.arrays.items()}
        fits = all(np.shape(state["steps"][n]) == array.shape for n, array in kept.items())
        self._stream.heads.row(ring)[0] = 0  # a concurrent reader finds nothing
        if fits:
            for name, array in kept.items():
                array[:] = restored.array(state["steps"], name, array)
                restored.finite(array, name)
            self._stream.heads.row(ring)[0] = head
