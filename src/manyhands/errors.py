"""Errors: one sentence that says what and where, one that says what to do."""

from __future__ import annotations


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
