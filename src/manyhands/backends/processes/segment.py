"""Nameless shared memory: it lives as long as somebody has it open, so nothing can be left behind.

Every array and tensor that lies in a segment, or is a view of one that does, is known by its
address. That is how it travels to another process as itself and not as a copy.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.ram import free_bytes
from manyhands.types import Array, BadRequest

if TYPE_CHECKING:
    from torch import Tensor

PAGE_BYTES = mmap.PAGESIZE
ALIGN_BYTES = 64  # a cache line, so that neighbours do not disturb each other
SMALL_BYTES, COMMON_BYTES = 65_536, 1_048_576
_by_address: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
_by_descriptor: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()


class Segment(mmap.mmap):
    """Freed with the last array that lies in it."""

    descriptor: int
    address: int

    def __new__(cls, descriptor: int, size: int) -> Segment:
        self = super().__new__(cls, descriptor, size)
        self.descriptor = descriptor
        self.address = address_of(np.frombuffer(self, np.uint8))
        weakref.finalize(self, os.close, descriptor).atexit = False
        _by_address[self.address] = self
        _by_descriptor[descriptor] = self
        return self

    def reserve(self, offset: int, size: int) -> None:
        """Takes the memory now: to lack it later would be a SIGBUS in the middle of a run."""
        reserve(self.descriptor, offset, size)

    def array(
        self,
        offset: int,
        shape: tuple[int, ...],
        dtype: Any,
        strides: tuple[int, ...] | None = None,
    ) -> Array:
        made: Array = np.ndarray(shape, dtype, self, offset, strides)
        return made

    def tensor(
        self, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]
    ) -> Tensor:
        import torch

        whole = torch.from_numpy(np.frombuffer(self, np.uint8)).view(dtype)
        return whole.as_strided(shape, strides, offset // dtype.itemsize)

    def __reduce__(self) -> tuple[Any, ...]:
        return attach, (self.descriptor, len(self))


def address_of(array: Array) -> int:
    """As `array.ctypes.data`, without its import, which fails while the interpreter ends."""
    return int(array.__array_interface__["data"][0])


def pages(size: int) -> int:
    """Rounded up to whole pages, one at least."""
    return max(PAGE_BYTES, math.ceil(size / PAGE_BYTES) * PAGE_BYTES)


def sparse(size: int) -> Segment:
    """Addresses without memory behind them; `Segment.reserve` what is used."""
    descriptor = os.memfd_create("manyhands", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, pages(size))
        return Segment(descriptor, pages(size))
    except OSError as error:
        os.close(descriptor)
        raise refusal(size, error) from error


def reserve(descriptor: int, offset: int, size: int) -> None:
    try:
        if size > free_bytes():
            raise OSError("there is less")
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        raise refusal(size, error) from error


def refusal(size: int, error: OSError) -> BadRequest:
    needed, free = f"{size / 1e6:,.1f} MB", f"{free_bytes() / 1e6:,.1f} MB"
    return BadRequest(
        f"{needed} of shared memory are needed, {free} are free: {error}",
        "free some memory, or ask for a smaller memory.capacity or fewer workers",
    )


def reserved(size: int) -> Segment:
    descriptor = os.memfd_create("manyhands", os.MFD_CLOEXEC)
    try:
        reserve(descriptor, 0, pages(size))
    except BadRequest:
        os.close(descriptor)
        raise
    return Segment(descriptor, pages(size))


def allocate(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros, reserved: in a segment of their own, or among others if they are few."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size <= SMALL_BYTES:
        return _common.array(size, shape, kind)
    return reserved(size).array(0, shape, kind)


class _Common:
    """Small arrays lie side by side: a segment takes two descriptors, and those are few."""

    def __init__(self) -> None:
        self._now: weakref.ref[Segment] | None = None  # its arrays alone keep it alive
        self._used = 0

    def array(self, size: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        segment = self._now() if self._now else None
        if segment is None or self._used + size > len(segment):
            segment, self._used = reserved(COMMON_BYTES), 0
            self._now = weakref.ref(segment)
        offset, self._used = self._used, self._used + -(-size // ALIGN_BYTES) * ALIGN_BYTES
        return segment.array(offset, shape, kind)


_common = _Common()


def share(tensor: Tensor) -> Tensor:
    import torch

    kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
    shared = torch.from_numpy(allocate(tuple(tensor.shape), kind))
    return shared.copy_(tensor)


# --- Travelling -----------------------------------------------------------------------------------


def attach(descriptor: int, size: int) -> Segment:
    """In the other process: the segment behind an inherited descriptor, mapped once."""
    found = _by_descriptor.get(descriptor)
    if found is None:
        os.set_inheritable(descriptor, False)
        found = Segment(descriptor, size)
    return found


def segment_at(address: int) -> Segment | None:
    """The segment an address lies in."""
    for start, segment in list(_by_address.items()):
        if start <= address < start + len(segment):
            return segment
    return None


def reduce_array(array: Array) -> tuple[Any, ...] | None:
    """How an array travels, if it lies in a segment."""
    address = address_of(array)
    segment = segment_at(address) if array.size else None
    if segment is None:
        return None
    offset = address - segment.address
    return Segment.array, (segment, offset, array.shape, array.dtype, array.strides)


def reduce_tensor(tensor: Tensor) -> tuple[Any, ...] | None:
    address = tensor.data_ptr() if tensor.device.type == "cpu" and tensor.numel() else 0
    segment = segment_at(address) if address else None
    if segment is None:
        return None
    offset = address - segment.address
    shape, strides = tuple(tensor.shape), tensor.stride()
    return Segment.tensor, (segment, offset, shape, tensor.dtype, strides)
