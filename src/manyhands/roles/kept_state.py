"""Kept state: the algorithm's state that is not in its parameters, such as a target network.

The first learner publishes every change. Checkpoints and processes that start later read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from manyhands.types import Array, Backend, State


class KeptState:
    def __init__(self, backend: Backend, state: State) -> None:
        """`state` is the first value. Later ones must have its keys, shapes and kinds."""
        self._template = _copied(state)
        self._notice = backend.notice(_WHOLE, *_leaves(self._template))

    def put(self, state: State) -> None:
        """For one writer. A state that does not fit, as a user's algorithm may have, is lost."""
        fits = _fits(self._template, state)
        leaves = _leaves(state) if fits else _leaves(self._template)
        self._notice.post(_WHOLE if fits else _LOST, *leaves)

    def get(self) -> State:
        """The newest state; empty if it was lost."""
        whole, state = _WHOLE.copy(), _copied(self._template)
        self._notice.read(whole, *_leaves(state))
        return _plain(state) if whole[0] else {}


_WHOLE, _LOST = np.ones(1, np.bool_), np.zeros(1, np.bool_)


def make(backend: Backend, state: State) -> KeptState | None:
    """None: the state is empty or has other values than numbers, and is not kept."""
    return KeptState(backend, state) if state and _is_numeric(state) else None


def _is_numeric(state: Any) -> bool:
    if isinstance(state, Mapping):
        return all(map(_is_numeric, state.values()))
    try:
        return np.asarray(state).dtype.kind in "biuf"
    except ValueError:  # rows of different lengths
        return False


class _Number:
    """A number in an array of one: a notice has arrays only."""

    def __init__(self, value: Any) -> None:
        self.cell = np.atleast_1d(np.asarray(value)).copy()


def _copied(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, _Number):
        return _Number(state.cell)
    value = np.asarray(state)
    return value.copy() if value.shape else _Number(value)


def _leaves(state: Any) -> Iterator[Array]:
    if isinstance(state, Mapping):
        for value in state.values():
            yield from _leaves(value)
    else:
        yield state.cell if isinstance(state, _Number) else np.atleast_1d(np.asarray(state))


def _plain(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in state.items()}
    return state.cell[0].item() if isinstance(state, _Number) else state


def _fits(template: Any, state: Any) -> bool:
    if isinstance(template, dict):
        same_keys = isinstance(state, Mapping) and list(template) == list(state)
        return same_keys and all(_fits(value, state[name]) for name, value in template.items())
    if not _is_numeric(state):
        return False
    value, like = np.asarray(state), template.cell if isinstance(template, _Number) else template
    shape = () if isinstance(template, _Number) else like.shape
    return value.shape == shape and np.can_cast(value.dtype, like.dtype, "same_kind")
