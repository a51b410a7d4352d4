"""How a job and all it captures reach another process: pickled once, passed in memory.

Shared memory is passed as the number of an inherited descriptor, everything else by value.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from manyhands.backends.processes import segment
from manyhands.types import BadRequest, users_files
from manyhands.types.delivered import Files


class Endpoint:
    """An object of which each process has its own end. The client number identifies the end."""

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"a {type(self).__name__} can be sent only with a job or a hosted object")


class Inherited:
    """An object behind a descriptor that has the same number in every process."""

    descriptor: int


@dataclass(frozen=True)
class Parcel:
    """What a process is started with, the same for every incarnation."""

    body: bytes
    kept: tuple[segment.Segment | Inherited, ...]  # kept open: the body names their descriptors
    here: str  # the working folder
    path: tuple[str, ...]  # imports there must find the same files
    numbers: dict[int, int] = field(default_factory=dict)  # of descriptors packed elsewhere
    files: Files = field(default_factory=users_files.loaded)  # the user's

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple({each.descriptor for each in self.kept})

    @property
    def content(self) -> bytes:
        files = tuple(self.files)
        return pickle.dumps((self.here, list(self.path), self.numbers, files, self.body))


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
        reduced = reduce_shared(thing)
        return super().reducer_override(thing) if reduced is None else reduced


def reduce_shared(thing: Any) -> tuple[Any, ...] | None:
    if type(thing) is np.ndarray:
        return segment.reduce_array(thing)
    torch = sys.modules.get("torch")
    if torch is not None and type(thing) is torch.Tensor:
        return segment.reduce_tensor(thing)
    return None


def pack(thing: Any, *, client: int, name: str) -> Parcel:
    file = io.BytesIO()
    return pack_with(Packer(file, client), file, thing, name)


def pack_with(packer: Packer, file: io.BytesIO, thing: Any, name: str) -> Parcel:
    try:
        packer.dump(thing)
    except BadRequest:
        raise
    except Exception as error:
        raise BadRequest(
            f"{name} cannot be sent to another process: {type(error).__name__}: {error}",
            "create what cannot be pickled inside the job, before its first yield",
        ) from error
    here = os.getcwd()
    path = tuple(entry or here for entry in sys.path)
    return Parcel(file.getvalue(), tuple(packer.kept), here, path)
