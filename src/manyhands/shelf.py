"""The shelf: what the first learner's algorithm keeps beside its parameters, as a target network.

It is laid there whenever it changes, for checkpoints and for whoever takes a seat later. Two copies
and a count, as of what is published (published.py): killed in the middle of it, the learner leaves
the newest as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from manyhands.types import Array, Backend, State

BEGUN, DONE, UNLIKE = range(3)


class Number(NamedTuple):
    """Of a state, where all see it."""

    cell: Array  # [1]


class Shelf:
    def __init__(self, backend: Backend, state: State) -> None:
        """`state` is the first that lies there, and what later ones are like."""
        self._copies = [_places_for(state, backend) for _ in range(2)]
        self._counts = backend.allocate((3,), np.dtype(np.int64))

    def put(self, state: State) -> None:
        """For one writer. A state of another form, as of an algorithm of one's own, is not kept."""
        self._counts[UNLIKE] = not _is_like(self._copies[0], state)
        if self._counts[UNLIKE]:
            return
        number = int(self._counts[DONE]) + 1
        self._counts[BEGUN] = number
        _write(self._copies[number % 2], state)
        self._counts[DONE] = number

    def get(self) -> State:
        """Nothing, where nothing could be kept."""
        while not self._counts[UNLIKE]:
            number = int(self._counts[DONE])
            state: State = _read(self._copies[number % 2])
            if int(self._counts[BEGUN]) <= number + 1:
                return state
        return {}


def make(backend: Backend, state: State) -> Shelf | None:
    """None: nothing is kept, or something that is no number; who comes later then begins anew."""
    return Shelf(backend, state) if state and _is_of_numbers(state) else None


def _is_of_numbers(state: Any) -> bool:
    if isinstance(state, Mapping):
        return all(map(_is_of_numbers, state.values()))
    try:
        return np.asarray(state).dtype.kind in "biuf"
    except ValueError:  # rows of different lengths
        return False


def _places_for(state: Any, backend: Backend) -> Any:
    if isinstance(state, Mapping):
        return {name: _places_for(value, backend) for name, value in state.items()}
    array = np.asarray(state)
    place = backend.allocate(array.shape or (1,), array.dtype)
    place[:] = array
    return place if array.shape else Number(place)


def _is_like(places: Any, state: Any) -> bool:
    if isinstance(places, dict):
        there = isinstance(state, Mapping) and places.keys() == state.keys()
        return there and all(_is_like(place, state[name]) for name, place in places.items())
    if not _is_of_numbers(state):
        return False
    array, place = np.asarray(state), places.cell if isinstance(places, Number) else places
    shape = () if isinstance(places, Number) else place.shape
    return array.shape == shape and np.can_cast(array.dtype, place.dtype, "same_kind")


def _write(places: Any, state: Any) -> None:
    if isinstance(places, dict):
        for name, place in places.items():
            _write(place, state[name])
    elif isinstance(places, Number):
        places.cell[0] = state
    else:
        places[:] = state


def _read(places: Any) -> Any:
    if isinstance(places, dict):
        return {name: _read(place) for name, place in places.items()}
    return places.cell[0].item() if isinstance(places, Number) else places.copy()
