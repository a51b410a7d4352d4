"""Batches: the buffers that a replay copies its draws into, and the cutting of draws into batches.

Buffers and their views are made once per size. Making a view costs as much as filling it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from manyhands.memory.storage.lanes import Lanes
from manyhands.memory.storage.sampling import Sample
from manyhands.types import FIRST_STEP, Array, Batch


class BatchBuffers:
    """Copies rows of these lanes into batches. A batch is valid until the next one of its size."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._batches: dict[int, tuple[Batch, dict[str, Array]]] = {}
        # Views of our own tensors: by the tensor's id, then by the rows of a view.
        self._views: dict[int, dict[int, Sequence[Tensor]]] = {}

    def fill(self, sample: Sample, *, first_step: bool = False) -> Batch:
        """`first_step`: with the columns `FIRST_STEP`, as a model of the environment needs them."""
        size = len(sample.rows)
        if size not in self._batches:
            self._batches[size] = self._allocate(size, first_step=first_step)
        batch, buffers = self._batches[size]
        self._lanes.observations(sample.rows, buffers["observation"])
        self._lanes.observations(sample.bootstrap, buffers["next_observation"])
        buffers["reward"][:] = sample.reward
        buffers["discount"][:] = sample.discount
        buffers["rows"][:] = sample.rows
        for name in ("action", *self._lanes.columns):
            buffers[name][:] = self._lanes.flat[name][sample.rows]
        buffers["weight"][:] = sample.weight
        if first_step:
            buffers["first_reward"][:] = self._lanes.flat["reward"][sample.rows]
            buffers["first_discount"][:] = self._lanes.flat["discount"][sample.rows]
            self._lanes.observations(self._lanes.onward(sample.rows), buffers["first_next"])
        return batch

    def replace(self, size: int, at: Array, other: int) -> None:
        """Overwrites the rows `at` of the batch of `size` with the first rows of another batch."""
        for name, buffer in self._batches[size][1].items():
            buffer[at] = self._batches[other][1][name][: at.size]

    def _allocate(self, size: int, *, first_step: bool) -> tuple[Batch, dict[str, Array]]:
        """A batch of tensors that share memory with NumPy buffers."""
        spec, flat = self._lanes.spec, self._lanes.flat
        buffers: dict[str, Array] = {
            "observation": np.zeros((size, *spec.observation_shape), spec.frame_dtype),
            "action": np.zeros(size, np.int64),
            "reward": np.zeros(size, np.float32),
            "discount": np.zeros(size, np.float32),
            "next_observation": np.zeros((size, *spec.observation_shape), spec.frame_dtype),
            "weight": np.ones(size, np.float32),
        }
        tensors = {name: torch.from_numpy(buffer) for name, buffer in buffers.items()}
        columns = {
            name: np.zeros((size, *flat[name].shape[1:]), flat[name].dtype)
            for name in self._lanes.columns
        }
        if first_step:
            seen = np.zeros_like(buffers["next_observation"])
            numbers = np.zeros(size, np.float32), np.zeros(size, np.float32)
            columns |= dict(zip(FIRST_STEP, (*numbers, seen), strict=True))
        rows = np.zeros(size, np.int64)
        remembered = {name: torch.from_numpy(column) for name, column in columns.items()}
        self._views |= {id(ours): {} for ours in (*tensors.values(), *remembered.values())}
        batch = Batch(**tensors, rows=rows, columns=remembered)
        return batch, {**buffers, **columns, "rows": rows}

    def cut(self, drawn: Batch, size: int) -> Iterator[Batch]:
        """Cuts a draw, whose length is a multiple of `size`, into batches of `size` rows."""
        if len(drawn.rows) == size:
            yield drawn
            return
        columns = {name: self._cuts(column, size) for name, column in drawn.columns.items()}
        rows = drawn.rows.reshape(-1, size)
        cuts = zip(
            self._cuts(drawn.observation, size),
            self._cuts(drawn.action, size),
            self._cuts(drawn.reward, size),
            self._cuts(drawn.discount, size),
            self._cuts(drawn.next_observation, size),
            self._cuts(drawn.weight, size),
            strict=True,
        )
        for i, (now, action, reward, discount, then, weight) in enumerate(cuts):
            some = {name: column[i] for name, column in columns.items()}
            yield Batch(now, action, reward, discount, then, weight, rows[i], some)

    def _cuts(self, tensor: Tensor, size: int) -> Sequence[Tensor]:
        """Views of `tensor`. They are kept if the tensor is one of our own buffers."""
        kept = self._views.get(id(tensor), {})
        if size not in kept:
            kept[size] = tensor.view(-1, size, *tensor.shape[1:]).unbind()
        return kept[size]
