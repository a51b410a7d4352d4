"""Nameless shared memory: the kernel frees it when no process has it open, so none is left behind.

An array or tensor in a segment, or a view of one, is recognised by its address. So it is passed to
another process by reference, not as a copy.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.types import Array, BadRequest
from manyhands.types.machine import free_bytes
from manyhands.types.sizes import human

if TYPE_CHECKING:
    from torch import Tensor

PAGE_BYTES = mmap.PAGESIZE
ALIGN_BYTES = 64  # a cache line, against false sharing
SMALL_BYTES, COMMON_BYTES = 65_536, 1_048_576
_by_address: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
_by_descriptor: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
_numbers: dict[int, int] = {}  # of descriptors: where they were packed -> here


class Segment(mmap.mmap):
    """Freed with the last array in it."""

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
        """Takes the memory now. Without it a run could die of SIGBUS later."""
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
    """`array.ctypes.data` without its import, which fails while the interpreter ends."""
    return int(array.__array_interface__["data"][0])


def pages(size: int) -> int:
    """Rounded up to whole pages, at least one."""
    return max(PAGE_BYTES, math.ceil(size / PAGE_BYTES) * PAGE_BYTES)


def sparse(size: int) -> Segment:
    """Addresses without memory; `Segment.reserve` the ranges you use."""
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
    needed, free = human(size), human(free_bytes())
    return BadRequest(
        f"{needed} of shared memory are needed, {free} are free: {error}",
        "free some memory, or use a smaller memory.capacity or fewer workers",
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
    """Zeros, reserved: in their own segment, or in a common one if they are small."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size <= SMALL_BYTES:
        return _common.array(size, shape, kind)
    return reserved(size).array(0, shape, kind)


class _Common:
    """A segment for many small arrays, since a segment takes two descriptors."""

    def __init__(self) -> None:
        self._now: weakref.ref[Segment] | None = None  # only its arrays keep it alive
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


# --- Pickling -------------------------------------------------------------------------------------


def renumber(numbers: Mapping[int, int]) -> None:
    """For a process whose parent did not pack what it was started with."""
    _numbers.update(numbers)


def number_here(descriptor: int) -> int:
    """Of an inherited descriptor that had this number where it was packed."""
    return _numbers.get(descriptor, descriptor)


def attach(descriptor: int, size: int) -> Segment:
    """In another process: the segment behind an inherited descriptor, mapped once."""
    descriptor = number_here(descriptor)
    found = _by_descriptor.get(descriptor)
    if found is None:
        os.set_inheritable(descriptor, False)
        found = Segment(descriptor, size)
    return found


def segment_at(address: int) -> Segment | None:
    """The segment that contains this address."""
    for start, segment in list(_by_address.items()):
        if start <= address < start + len(segment):
            return segment
    return None


def reduce_array(array: Array) -> tuple[Any, ...] | None:
    """How to pickle an array, if it is in a segment."""
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
