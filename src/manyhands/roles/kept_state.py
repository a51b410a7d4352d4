"""Kept state: what the first learner's algorithm holds beside its parameters, as a target network.

The learner writes it whenever it changes. Checkpoints read it, and processes that start later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from manyhands.roles.double_buffer import DoubleBuffer
from manyhands.types import Array, Backend, State


class Number(NamedTuple):
    """A number in shared memory, which has arrays only."""

    cell: Array  # [1]


class KeptState:
    def __init__(self, backend: Backend, state: State) -> None:
        """`state` is the first value. Later ones must have its keys, shapes and kinds."""
        self._template = _allocate_like(state, backend)
        self._buffer = DoubleBuffer(backend, (self._template, _allocate_like(state, backend)))
        self._lost = backend.allocate((1,), np.dtype(np.bool_))  # the last state did not fit

    def put(self, state: State) -> None:
        """For one writer. A state that does not fit, as a user's algorithm may have, is lost."""
        self._lost[0] = not _fits(self._template, state)
        if not self._lost[0]:
            self._buffer.write(lambda arrays: _write(arrays, state))

    def get(self) -> State:
        """The newest state; empty if it was lost."""
        if self._lost[0]:
            return {}
        state: State = self._buffer.read(_read)[0]
        return state


def make(backend: Backend, state: State) -> KeptState | None:
    """None: the state is empty, or not all of it is numbers. A replacement then starts afresh."""
    return KeptState(backend, state) if state and _is_numeric(state) else None


def _is_numeric(state: Any) -> bool:
    if isinstance(state, Mapping):
        return all(map(_is_numeric, state.values()))
    try:
        return np.asarray(state).dtype.kind in "biuf"
    except ValueError:  # rows of different lengths
        return False


def _allocate_like(state: Any, backend: Backend) -> Any:
    """Shared arrays in the same tree, with the same values."""
    if isinstance(state, Mapping):
        return {name: _allocate_like(value, backend) for name, value in state.items()}
    value = np.asarray(state)
    array = backend.allocate(value.shape or (1,), value.dtype)
    array[:] = value
    return array if value.shape else Number(array)


def _fits(arrays: Any, state: Any) -> bool:
    if isinstance(arrays, dict):
        same_keys = isinstance(state, Mapping) and arrays.keys() == state.keys()
        return same_keys and all(_fits(array, state[name]) for name, array in arrays.items())
    if not _is_numeric(state):
        return False
    value, array = np.asarray(state), arrays.cell if isinstance(arrays, Number) else arrays
    shape = () if isinstance(arrays, Number) else array.shape
    return value.shape == shape and np.can_cast(value.dtype, array.dtype, "same_kind")


def _write(arrays: Any, state: Any) -> None:
    if isinstance(arrays, dict):
        for name, array in arrays.items():
            _write(array, state[name])
    elif isinstance(arrays, Number):
        arrays.cell[0] = state
    else:
        arrays[:] = state


def _read(arrays: Any) -> Any:
    if isinstance(arrays, dict):
        return {name: _read(array) for name, array in arrays.items()}
    return arrays.cell[0].item() if isinstance(arrays, Number) else arrays.copy()
