"""The bytes of many arrays in pieces that Ray sends with a call itself.

Ray puts an argument above 100 kB into its object store, and its raylets carry it from there. That
costs several times as much of a core as smaller arguments, which go with the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from manyhands.types import Array

PIECE_BYTES = 96 << 10
MOST_BYTES = 8 << 20  # Ray sends up to 10 MB with a call itself
LARGE_BYTES = 4 << 20  # a piece of more than that: the object store carries it


def cut(arrays: Sequence[Array]) -> list[bytes]:
    """All of them one after the other. They are contiguous."""
    total = sum(array.nbytes for array in arrays)
    size = PIECE_BYTES if total <= MOST_BYTES else LARGE_BYTES
    pieces: list[bytes] = []
    some: list[memoryview] = []
    room = size
    for view in _views(arrays):
        at = 0
        while at < len(view):
            part = view[at : at + room]
            some.append(part)
            at, room = at + len(part), room - len(part)
            if not room:
                pieces.append(b"".join(some))
                some, room = [], size
    return [*pieces, b"".join(some)] if some else pieces


def write(pieces: Iterable[bytes], arrays: Iterable[Array]) -> None:
    """Into arrays of the same sizes, in the same order."""
    reader = Reader(pieces)
    for array in arrays:
        reader.read(array)


class Reader:
    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._rest, self._piece = iter(pieces), memoryview(b"")

    def read(self, into: Array) -> None:
        """The bytes of the next array."""
        for view in _views([into]):
            at = 0
            while at < len(view):
                self._piece = self._piece or memoryview(next(self._rest))
                part = self._piece[: len(view) - at]
                view[at : at + len(part)] = part
                at, self._piece = at + len(part), self._piece[len(part) :]


def _views(arrays: Iterable[Array]) -> Iterator[memoryview]:
    return (array.reshape(-1).view(np.uint8).data for array in arrays if array.size)
