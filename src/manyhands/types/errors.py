"""Errors: one sentence that says what and where, one that says what to do."""

from __future__ import annotations

import traceback
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
TEXT_CHARACTERS, TRACE_CHARACTERS = 300, 2000  # that are kept of what others say


class Refusal(Exception):
    """Something a person must know. ``code`` is the exit code of the command."""

    code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        """For who sees it as an exception; a command has a line for each."""
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


class BadRequest(Refusal):
    """What was asked for cannot be done as asked; nothing was started."""

    code = 2


class Failure(Refusal):
    """What was asked for was begun and could not be finished."""


# --- What others' errors say ----------------------------------------------------------------------


def plain(text: str) -> str:
    """Without what a terminal could take for an order."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def short(text: str, most: int = TEXT_CHARACTERS) -> str:
    """Its beginning, on one line."""
    line = " ".join(plain(text[: most + 1]).split("\n"))
    return line if len(text) <= most else f"{line[:most]}…"


def text_of(error: BaseException) -> str:
    """What an error says, shortened; of one that cannot even say it, that."""
    try:
        return short(str(error))
    except Exception:
        return "its text cannot be made"


def place_of(error: BaseException) -> str:
    """Where in a user's own file it was raised: " (net.py, line 7)"; empty if in none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if PACKAGE not in path.parents and "site-packages" not in path.parts and path.is_file():
            return f" ({path.name}, line {frame.lineno})"
    return ""


def trace_of(error: BaseException) -> str:
    """Its traceback, from the end; no message in it is so long that the rest has no room."""
    entries = traceback.format_exception(error)
    text = "".join(entry[: TRACE_CHARACTERS // 4] for entry in entries)
    return plain(text[-TRACE_CHARACTERS:])
