"""Sleeping until a word of shared memory changes, without a file descriptor per pair."""

from __future__ import annotations

import ctypes
import platform
import time

WAIT, WAKE = 0, 1
ALL = 2**31 - 1
NAP_S = 0.0005  # where the number of the system call is unknown
_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine())
_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_ulong,
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long,
)  # fmt: skip


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait(address: int, seen: int, timeout_s: float) -> None:
    """Returns when woken, or at once if the word is no longer `seen`.

    The word is the lower half of a 64-bit one. It may return without a reason: check again.
    """
    if _NUMBER is None:
        time.sleep(min(NAP_S, timeout_s))
        return
    span = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _syscall(_NUMBER, address, WAIT, seen & 0xFFFFFFFF, ctypes.addressof(span), None, 0)


def wake(address: int) -> None:
    if _NUMBER is not None:
        _syscall(_NUMBER, address, WAKE, ALL, None, None, 0)
