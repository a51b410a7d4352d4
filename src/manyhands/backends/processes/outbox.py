"""An outbox: nameless memory of any size, in which a worker leaves its state for main."""

from __future__ import annotations

import os
import pickle
import weakref
from typing import Any

from manyhands.backends.processes import segment
from manyhands.backends.processes.packing import Inherited
from manyhands.types import State

HEADER_BYTES = 8  # the length of the state, written last; 0: there is none


class Outbox(Inherited):
    """One worker writes, main reads. A worker killed while it writes leaves an empty outbox."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False

    def clear(self) -> None:
        os.ftruncate(self.descriptor, 0)

    def put(self, state: State) -> None:
        """The state is pickled: it passes between two of our own processes and is in no file."""
        self.clear()
        content = memoryview(pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL))
        done = 0
        while done < len(content):
            done += os.pwrite(self.descriptor, content[done:], HEADER_BYTES + done)
        os.pwrite(self.descriptor, len(content).to_bytes(HEADER_BYTES, "little"), 0)

    def get(self) -> State | None:
        content = self.content()
        if not content:
            return None
        state: State = pickle.loads(content)
        return state

    def content(self) -> bytes:
        """The pickled state; empty if there is none."""
        size = int.from_bytes(os.pread(self.descriptor, HEADER_BYTES, 0), "little")
        pieces, done = [], 0
        while done < size:
            pieces.append(os.pread(self.descriptor, size - done, HEADER_BYTES + done))
            done += len(pieces[-1])
        return b"".join(pieces)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (self.descriptor,)


def make() -> Outbox:
    return Outbox(os.memfd_create("manyhands-state", os.MFD_CLOEXEC))


def _inherited(descriptor: int) -> Outbox:
    return Outbox(segment.number_here(descriptor))
