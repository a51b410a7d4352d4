"""The lock that keeps a folder to one process. The kernel frees it however its holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

NAPS_S = (0.01, 0.05, 0.1, 0.0)


def opened(folder: Path) -> int:
    """The lock is on the folder itself."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def taken(descriptor: int) -> bool:
    """Tries for a moment: a process that checks whether the run lives holds it briefly."""
    for nap_s in NAPS_S:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(nap_s)
        else:
            return True
    return False


def release(descriptor: int) -> None:
    """Unlocks explicitly: a process forked outside Python may still have the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_held(descriptor: int) -> bool:
    """Whether another process holds the lock. OSError: a disk without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
