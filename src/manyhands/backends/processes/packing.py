"""How a job and all it captures reach another process: pickled once, passed in memory.

Shared memory is passed as the number of an inherited descriptor, everything else by value.
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
    """An object of which each process has its own end, known by its client number."""

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} travels with a worker or a hosted object only")


class Inherited:
    """An object behind a descriptor that has the same number in every process."""

    descriptor: int


@dataclass(frozen=True)
class Parcel:
    """What a process is started with, the same for every incarnation."""

    content: bytes
    kept: tuple[segment.Segment | Inherited, ...]  # kept open: the content names their descriptors

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
            "create what cannot be pickled inside the job, before its first yield",
        ) from error
    here = os.getcwd()
    path = [entry or here for entry in sys.path]  # imports there must find the same files
    return Parcel(pickle.dumps((here, path, file.getvalue())), tuple(packer.kept))
