"""What the queue's two sides share: its socket ends, and how vectors are pickled."""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any

from manyhands.backends.processes import segment
from manyhands.backends.processes.packing import Inherited
from manyhands.types import Array

if TYPE_CHECKING:
    from torch import Tensor


class Wire(Inherited):
    """One end of the queue, behind an inherited descriptor."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.descriptor, self.socket = descriptor, socket.socket(fileno=descriptor)
        weakref.finalize(self, self.socket.close).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (self.descriptor,)


def _inherited(descriptor: int) -> Wire:
    return Wire(segment.number_here(descriptor))


def wait(ends: list[tuple[socket.socket, int]], timeout_s: float) -> None:
    poller = select.poll()
    for end, event in ends:
        poller.register(end, event)
    poller.poll(timeout_s * 1000)


def to_array(vector: Tensor) -> Array:
    flat: Array = vector.detach().float().cpu().reshape(-1).numpy()
    return flat


def to_tensor(array: Array) -> Tensor:
    import torch

    return torch.from_numpy(array)


class _Vector:
    """A tensor in an answer, pickled as an array."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return to_tensor, (self.array,)


def packable(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _Vector(to_array(value))
    return tuple(map(packable, value)) if isinstance(value, tuple) else value


def unpacked(content: memoryview) -> tuple[str, Any]:
    error, value = pickle.loads(content)
    return error, value
