"""Errors: one sentence says what is wrong and where, one says what to do."""

from __future__ import annotations

import traceback
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
TEXT_CHARACTERS, TRACE_CHARACTERS = 300, 2000  # kept of another library's message


class Refusal(Exception):
    """An error for the user. ``code`` is the exit code of the command."""

    code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        """Both sentences in one line. A command prints two lines."""
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


class BadRequest(Refusal):
    """The request cannot be done as it is. Nothing was started."""

    code = 2


class Failure(Refusal):
    """The work was started and could not be finished."""


# --- Messages of other libraries ------------------------------------------------------------------


def plain(text: str) -> str:
    """Replaces control characters, which a terminal would obey."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def short(text: str, most: int = TEXT_CHARACTERS) -> str:
    """Its beginning, on one line."""
    line = " ".join(plain(text[: most + 1]).split("\n"))
    return line if len(text) <= most else f"{line[:most]}…"


def text_of(error: BaseException) -> str:
    """The text of an error, shortened. Its `__str__` may raise."""
    try:
        return short(str(error))
    except Exception:
        return "its text cannot be read"


def place_of(error: BaseException) -> str:
    """Where in a user's file it was raised: " (net.py, line 7)"; empty if not in one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if PACKAGE not in path.parents and "site-packages" not in path.parts and path.is_file():
            return f" ({path.name}, line {frame.lineno})"
    return ""


def trace_of(error: BaseException) -> str:
    """The end of its traceback. Each entry is cut, so that one long message hides no other."""
    entries = traceback.format_exception(error)
    text = "".join(entry[: TRACE_CHARACTERS // 4] for entry in entries)
    return plain(text[-TRACE_CHARACTERS:])
