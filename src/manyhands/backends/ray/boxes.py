"""Places for questions: mailboxes, of which every node has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from manyhands.backends.processes import segment
from manyhands.backends.processes.control import ENDS
from manyhands.backends.processes.group import Group
from manyhands.backends.processes.mailbox import Mailbox
from manyhands.types import Array

MOST_RUNNERS = 4096  # node runners of a run, those that were lost included
NO_PROXY = -1
INT = np.dtype(np.int64)


class Box:
    """The mailbox of a hosted object. Every node has its own; relaying.py joins them."""

    def __init__(self, place: int, mailbox: Mailbox) -> None:
        self.place, self.mailbox = place, mailbox
        self.seen = segment.allocate((MOST_RUNNERS,), INT)  # by node: the last delivery

    def arrays(self) -> list[Array]:
        return [self.seen]

    def given(self) -> list[Array]:
        return []

    def adopt(self, given: list[Array]) -> None:
        """A new node has no messages."""


class Rounds:
    """A place: on main's node the group; on other nodes the mailbox of their questions."""

    def __init__(
        self, place: int, mailbox: Mailbox, group: Group | None = None,
        rows: Array | None = None, stamps: Array | None = None, proxies: Array | None = None,
        table: Array | None = None,
    ) -> None:  # fmt: skip
        """`proxies`: by member, the client number of its proxy. `table`: the control table."""
        self.place, self.mailbox, self.group = place, mailbox, group
        self.rows, self.stamps, self.proxies, self.table = rows, stamps, proxies, table

    def elsewhere(self) -> tuple[Any, ...]:
        """How it is sent to another node."""
        return Rounds, (self.place, self.mailbox)

    def arrays(self) -> list[Array]:
        return []

    def given(self) -> list[Array]:
        return []

    def adopt(self, given: list[Array]) -> None:
        """A new node has no questions."""

    @property
    def clients(self) -> list[int]:
        """Of all proxies."""
        assert self.proxies is not None
        found: list[int] = self.proxies[self.proxies != NO_PROXY].tolist()
        return found

    def proxy(self, member: int, free: Callable[[], int]) -> None:
        """For a member that starts on another node. `free`: a client number for its proxy."""
        assert self.proxies is not None
        assert self.table is not None
        if self.proxies[member] == NO_PROXY:
            client = free()
            self.table[client, ENDS] = 0  # of a process that had this number before
            self.proxies[member] = client

    def note_life(self, member: int, ended: int) -> None:
        """How many incarnations of a member of another node have ended."""
        assert self.proxies is not None
        assert self.table is not None
        if (client := int(self.proxies[member])) != NO_PROXY:
            self.table[client, ENDS] = max(int(self.table[client, ENDS]), ended)
