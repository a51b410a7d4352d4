"""Descriptors from main to the node runner on main's node: both then have the same memory.

They go through a Unix socket without a file. Only the process with the expected number is let in.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress

from manyhands.backends.processes import segment
from manyhands.backends.processes.packing import Inherited
from manyhands.types import Failure

MOST = 200  # descriptors of one message; the kernel allows 253
PATIENCE_S = 30.0
CREDENTIALS = struct.Struct("3i")  # process, user, group
Kept = segment.Segment | Inherited


class Serials:
    """A number for everything that has a descriptor. Numbers of descriptors are used again."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[Kept, int] = weakref.WeakKeyDictionary()
        self._next = 0

    def of(self, kept: Kept) -> int:
        if kept not in self._of:
            self._of[kept] = self._next
            self._next += 1
        return self._of[kept]


class Sender:
    """Main's end. It sends each descriptor once."""

    def __init__(self) -> None:
        self.name = f"\0manyhands-{secrets.token_hex(16)}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self.name)
        self._listening.listen()
        self._connection: socket.socket | None = None
        self._sent: set[int] = set()

    def accept(self, pid: int) -> None:
        """Lets in the node runner. Others on this machine may know the name too."""
        self._listening.settimeout(PATIENCE_S)
        while self._connection is None:
            try:
                found, _ = self._listening.accept()
            except TimeoutError as error:
                raise Failure("the node runner on this machine did not connect") from error
            peer = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(peer)[:2] == (pid, os.getuid()):
                found.settimeout(PATIENCE_S)
                self._connection = found
            else:
                found.close()

    def send(self, kept: Mapping[int, Kept]) -> None:
        """By serial number. Fails without a word if the node runner is gone: its calls tell."""
        fresh = [serial for serial in kept if serial not in self._sent]
        assert self._connection is not None
        for at in range(0, len(fresh), MOST):
            some = fresh[at : at + MOST]
            content = struct.pack(f"{len(some)}q", *some)
            with suppress(OSError):
                numbers = [kept[serial].descriptor for serial in some]
                socket.send_fds(self._connection, [content], numbers)
            self._sent.update(some)

    def close(self) -> None:
        self._listening.close()
        if self._connection is not None:
            self._connection.close()


class Receiver:
    """The node runner's end."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect(name)
        self._held: dict[int, int] = {}  # serial -> descriptor

    def held(self, serials: Iterable[int]) -> dict[int, int]:
        """Waits until they are here."""
        wanted = set(serials)
        while not wanted <= self._held.keys():
            content, numbers, _, _ = socket.recv_fds(self._socket, MOST * 8, MOST)
            if not content:
                raise Failure("main closed the connection")
            got = struct.unpack(f"{len(content) // 8}q", content)
            self._held |= dict(zip(got, numbers, strict=True))
        return {serial: self._held[serial] for serial in wanted}
