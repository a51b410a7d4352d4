"""How a worker and all it closes over reach another process: pickled once, handed over in memory.

What lies in shared memory goes as the number of an inherited descriptor, the rest by value.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from manyhands.backends.processes import segment
from manyhands.types import BadRequest


class Endpoint:
    """What each process has its own end of; ends are told apart by the client's number."""

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} travels with a worker or a hosted object only")


class Inherited:
    """What is reached by a descriptor that has the same number in every process of ours."""

    descriptor: int


@dataclass(frozen=True)
class Parcel:
    """What one process is started with, as often as it is started."""

    content: bytes
    kept: tuple[segment.Segment | Inherited, ...]  # open, as their descriptors' numbers are inside

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple({each.descriptor for each in self.kept})


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, client: int) -> None:
        super().__init__(file)
        self._client = client
        self.kept: list[segment.Segment | Inherited] = []

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, segment.Segment | Inherited):
            self.kept.append(thing)
        elif isinstance(thing, Endpoint):
            return thing.reduce_for(self._client)
        reduced = _reduce_shared(thing)
        return super().reducer_override(thing) if reduced is None else reduced


def _reduce_shared(thing: Any) -> tuple[Any, ...] | None:
    if type(thing) is np.ndarray:
        return segment.reduce_array(thing)
    torch = sys.modules.get("torch")
    if torch is not None and type(thing) is torch.Tensor:
        return segment.reduce_tensor(thing)
    return None


def pack(thing: Any, *, client: int, name: str) -> Parcel:
    file = io.BytesIO()
    packer = Packer(file, client)
    try:
        packer.dump(thing)
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(
            f"{name} cannot be sent to a process of its own: {type(error).__name__}: {error}",
            "let it make there what cannot be pickled, as a worker's first act",
        ) from error
    path = [entry or os.getcwd() for entry in sys.path]  # imports must find there what they do here
    return Parcel(pickle.dumps((path, file.getvalue())), tuple(packer.kept))
