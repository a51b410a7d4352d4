"""What a process sets once, before its first torch operation: threads, allocator, device."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch

from manyhands.config.plans import Plan
from manyhands.maths import products
from manyhands.maths import threads as shared_threads
from manyhands.types import BadRequest, users_files

IMPORTS = ("torch", "gymnasium", "manyhands.roles.jobs")  # of every process; they take a second
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
LARGEST_THRESHOLD = 32 * 2**20  # the largest that glibc accepts


def set_threads(threads: int, *, users_network: bool = False) -> None:
    """Call it before the first torch operation of the process.

    Our own networks split a pass by rows among threads (`maths.threads`). The rows of a user's
    network may depend on each other, so there torch splits each operation.
    """
    torch.set_num_threads(threads if users_network else 1)
    shared_threads.use(1 if users_network else threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    limit_numpy_to_one_thread()


def keep_freed_memory() -> None:
    """Keeps freed memory in the process. Every update frees and allocates tens of megabytes; glibc
    would return them to the kernel, which then clears every page again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def limit_numpy_to_one_thread() -> None:
    """NumPy's products here are small, and its threads would spin on cores that torch needs.

    Does nothing where NumPy does not use its own OpenBLAS.
    """
    with suppress(OSError, AttributeError):
        for library in products.openblas():
            library.scipy_openblas_set_num_threads64_(1)


def set_threads_for(plan: Plan, threads: int, network: object = None) -> None:
    """`set_threads`, for the network of this plan.

    A user's network gets one thread unless --threads is given: torch's threads spin while they
    wait for each other, which beside one other busy process is many times slower.
    """
    users = network is not None or users_files.is_path(plan.network.torso)
    set_threads((plan.top.threads or 1) if users else threads, users_network=users)


def choose_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _mps_is_available()}
    if not available[name]:
        raise BadRequest(f"--device {name} is not on this machine", "use --device auto")
    return name


def _mps_is_available() -> bool:
    return bool(torch.backends.mps.is_available())
