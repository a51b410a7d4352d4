"""What this machine has: cores and free memory, of its container if that is less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cores() -> int:
    """Those this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_bytes() -> int:
    """What this process may still take: of the machine, or of its container if that is less."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_cgroup_free()])


def _cgroup_free() -> Iterator[int]:
    """What is left in every control group above this process, of either version."""
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
    except (OSError, ValueError):  # no such group here, or a root group, which has no limit
        return
    if most.isdigit():  # otherwise "max"
        # Pages of files are counted as used but given back on demand.
        cached = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
        yield max(0, int(most) - used + cached)
