"""The protocols of what processes share, even between nodes. Each names its writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from manyhands.types.data import Array


class Table(Protocol):
    """Rows of numbers, each with one writer. All processes read all rows, perhaps late."""

    def row(self, index: int) -> Array:
        """For its one writer, in the process that writes it; main may write before `run`."""

    def rows(self) -> Array:
        """All rows as they are known here. The caller's own are current. Not to be written to."""


class Budget(Protocol):
    """How far a field of a table may grow, in sum over all rows: as if no row were late.

    A writer asks before each addition. So the sum exceeds the limit by less than one addition of
    each writer.
    """

    def has_rest(self) -> bool:
        """Whether this process may add to its row. False may become True, if others end."""

    def must_wait(self) -> bool:
        """Whether other nodes hold what is left, so that this process may not add for now."""


class Notice(Protocol):
    """The newest arrays of one writer. All processes read them whole, perhaps late."""

    def post(self, *arrays: Array) -> None:
        """Replaces all arrays at once. A writer killed meanwhile has posted nothing."""

    def number(self) -> int:
        """Of the newest post known here; 0: the first arrays."""

    def read(self, *into: Array) -> int:
        """Copies the newest arrays known here; returns the number of their post."""


class Live(Protocol):
    """A vector that its one writer changes in place. A reader may find a change half made."""

    @property
    def vector(self) -> Array: ...  # the writer's

    def read(self, into: Array) -> None:
        """Copies the vector as it is known here."""


class Stream(Protocol):
    """What many writers append, for the readers of one node.

    The first axis of all arrays has as many lanes for each writer; the second is a ring. A writer
    fills the next entries of its lanes, and then raises its row of `heads`, which counts the
    entries of each of its lanes; further fields are plain numbers. It may read its newest entry
    again. A reader that gives room back raises that writer's row of `tails`. Counts are never
    ahead of what they count.
    """

    @property
    def arrays(self) -> Mapping[str, Array]: ...

    @property
    def heads(self) -> Table: ...  # written by the writers

    @property
    def tails(self) -> Table: ...  # written by the reader

    def overwritten(self) -> Array:
        """The heads that decide what is overwritten by now. They are never late."""

    def has_room(self, writer: int) -> bool:
        """False: too many of its entries wait to leave its node, so it must not write now."""
