"""A file that only grows. Entries that do not fit on the disk are kept and written later."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from manyhands.config import runfiles

MOST_KEPT = 64 << 20  # bytes that wait for space: a full disk must not fill the memory too


class Journal:
    """`add` never fails. If a write stops midway, the next one continues at that byte.

    So readers find every entry complete and only once.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._file: BinaryIO | None = None
        self._waiting = bytearray()
        self.dropped = 0  # entries that fit neither here nor on the disk

    def add(self, entry: bytes) -> None:
        if len(self._waiting) + len(entry) > MOST_KEPT:
            self.dropped += 1
        else:
            self._waiting += entry

    def flush(self) -> None:
        """Writes all waiting entries. After an OSError some of them still wait."""
        if not self._waiting:
            return
        file = self._file or self._opened()
        while self._waiting:
            written = os.write(file.fileno(), self._waiting)
            del self._waiting[:written]

    def _opened(self) -> BinaryIO:
        with runfiles.opened(self._folder, make=True) as folder:
            self._file = folder.appending(self._name)
        return self._file

    def close(self) -> None:
        """Tries to flush. What still waits is written by a later flush, if there is one."""
        with suppress(OSError):
            self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
