"""The machine's cores and free memory, or its container's if that has less."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    return cpuinfo("model name", "CPU part") or platform.machine()


def cpuinfo(*names: str) -> str:
    """The first entry of one of these names, as Linux tells; elsewhere empty."""
    with suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            name, _, words = line.partition(":")
            if name.strip() in names:
                return words.strip()
    return ""


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_bytes() -> int:
    """What this process may still take: free memory of the machine or its container, or its limit
    (ulimit -v), whichever is least.
    """
    import psutil

    available = int(psutil.virtual_memory().available)
    return min([available, *_cgroup_free(), *_limit_free(psutil.Process().memory_info().vms)])


def _limit_free(used: int) -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield max(0, limit - used)


def _cgroup_free() -> Iterator[int]:
    """The free memory of every control group of this process, version 1 or 2."""
    if not OWN_CGROUPS.exists():
        return
    for line in OWN_CGROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own = Path(path.lstrip("/"))
        if controllers == "":
            names = ("memory.max", "memory.current", "")
            mount = CGROUPS
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            mount = CGROUPS / "memory"
        else:
            continue
        for group in (own, *own.parents):
            yield from _group_free(mount / group, *names)


def _group_free(group: Path, limit: str, usage: str, prefix: str) -> Iterator[int]:
    try:
        most = (group / limit).read_text().strip()
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or a root group, which has no limit
        return
    if most.isdigit():  # otherwise "max"
        # Cached files count as used, but the kernel frees them when needed.
        cached = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
        yield max(0, int(most) - used + cached)
