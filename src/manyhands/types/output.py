"""Standard output may be closed, full or ASCII-only. A run does not depend on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

DEVICE = "/dev/null"


class Outlet:
    """A stream whose write never raises. It drops text that cannot be written; see `problem`.

    It tries again with the next text, since a full disk may have space later.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.problem: Exception | None = None  # the first error

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:
            self._attempt(self.stream.write, _in_letters_of(self.stream, text))
        except (OSError, ValueError) as error:  # ValueError: it was closed
            self.problem = self.problem or error
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, what: Any, *given: Any) -> None:
        try:
            what(*given)
        except (OSError, ValueError) as error:
            self.problem = self.problem or error

    def isatty(self) -> bool:
        try:
            return self.stream.isatty()
        except ValueError:  # it was closed
            return False

    @property
    def reader_left(self) -> bool:
        return isinstance(self.problem, BrokenPipeError)

    def can_show(self, letters: str) -> bool:
        return _in_letters_of(self.stream, letters) == letters

    def __getattr__(self, name: str) -> Any:
        """Everything else comes from the stream."""
        return getattr(self.stream, name)


def _in_letters_of(stream: TextIO, text: str) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def standard() -> Outlet:
    """The current standard output: a notebook or a test may have replaced it."""
    stream: Any = sys.stdout
    if isinstance(stream, Outlet):
        return stream
    return Outlet(_nowhere() if stream is None else stream)


def _nowhere() -> TextIO:
    return os.fdopen(os.open(DEVICE, os.O_WRONLY), "w")


def install() -> tuple[Outlet, Outlet]:
    """Replaces both streams of this process by outlets."""
    _open_what_is_closed()
    out, err = standard(), Outlet(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    return out, err


@contextmanager
def installed() -> Iterator[Outlet]:
    """Inside this block both streams are outlets; yields that of standard output."""
    _open_what_is_closed()
    before = sys.stdout, sys.stderr
    outlets = install()
    try:
        yield outlets[0]
    finally:
        for outlet in outlets:
            outlet.flush()
            if outlet.problem is not None:
                _give_up(outlet.stream)
        sys.stdout, sys.stderr = before


def _open_what_is_closed() -> None:
    """If a standard descriptor is closed (``>&-``), the next opened file would get its number,
    and a library would print into that file.
    """
    while (found := os.open(DEVICE, os.O_RDWR)) <= 2:
        pass
    os.close(found)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere())


def _give_up(stream: TextIO) -> None:
    """Python flushes at its exit. That must not fail because of dropped text."""
    with suppress(OSError, ValueError):
        device = os.open(DEVICE, os.O_WRONLY)
        os.dup2(device, stream.fileno())
        os.close(device)
