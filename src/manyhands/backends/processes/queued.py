"""A hosted object behind a queue: every message is pickled and goes through the kernel.

All clients share one queue of small pieces, as in `multiprocessing.Queue`; every `ask` has its own
pipe for the answer. It keeps the promises of `hosted` with two exceptions. A tell waits until the
host has fetched its pieces. If the host dies, all messages with pieces in the queue may be lost.
The order of the queue gives the rest: a tell that returned comes before every later ask. It is a
baseline for shared slots, which copy a vector once; this copies it about six times.
"""

from __future__ import annotations

import array
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from manyhands.backends.processes import control, segment
from manyhands.backends.processes.control import (
    LOOK_S,
    MAIN,
    MOST_CLIENTS,
    NAP_S,
    WORDS,
    ControlRow,
)
from manyhands.backends.processes.packing import Endpoint
from manyhands.backends.processes.wire import Wire, packable, to_array, to_tensor, unpacked, wait
from manyhands.types import Array, Failure
from manyhands.types.errors import text_of

if TYPE_CHECKING:
    from torch import Tensor

SENT, DONE = range(2)  # tells: the client counts what it sent, the host what it did
PIECE = struct.Struct("<qqq")  # client, offset in the message, bytes of the message
PIECE_BYTES = 65_536  # what a pipe holds
ANSWER = struct.Struct("<q")  # bytes that follow
_FILE = array.array("i", [0]).itemsize


# --- A client's end -------------------------------------------------------------------------------


class Answer:
    """A future. If its pipe closes before the answer is complete, the host died: it asks again."""

    def __init__(self, handle: Handle, message: bytes) -> None:
        self._handle, self._message = handle, message
        self._arrived = bytearray()
        self._kept: tuple[str, Any] | None = None
        self._ask()

    def _ask(self) -> None:
        self._arrived.clear()
        self._pipe, far = socket.socketpair()
        with far:  # the message carries a copy
            self._handle.send(self._message, far)

    def __del__(self) -> None:
        self._pipe.close()

    def result(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        with control.waiting():
            while self._kept is None and not self._read():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    name = self._handle.name
                    raise TimeoutError(f"{name} has not answered for {timeout_s:g} s")
                self._handle.sleep(self._pipe, select.POLLIN, left_s)
        assert self._kept is not None
        error, value = self._kept
        if error:
            raise Failure(f"{self._handle.name}: {error}")
        return value

    def ready(self) -> bool:
        return self._kept is not None or self._read()

    def _read(self) -> bool:
        """Reads what has arrived; True if the answer is complete."""
        try:
            while some := self._pipe.recv(PIECE_BYTES, socket.MSG_DONTWAIT):
                self._arrived += some
        except BlockingIOError:
            return False
        self._pipe.close()
        if self._is_complete():
            self._kept = unpacked(memoryview(self._arrived)[ANSWER.size :])
            return True
        self._ask()
        return False

    def _is_complete(self) -> bool:
        if len(self._arrived) < ANSWER.size:
            return False
        (size,) = ANSWER.unpack_from(self._arrived)
        return bool(len(self._arrived) == ANSWER.size + size)


class Handle(Endpoint):
    def __init__(
        self, name: str, inlet: Wire, lines: Array, client: int, numbers: int, depth: int,
        look: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.name, self._inlet, self._lines = name, inlet, lines
        self._client, self._numbers, self._depth = client, numbers, depth
        self._look = look  # only main's: called while it waits
        self._line = lines[client].data

    def tell(self, method: str, vector: Tensor | None = None, *numbers: float) -> bool:
        number = self._line[SENT]
        if number - self._line[DONE] >= self._depth:
            return False
        self.send(self._packed(number, method, vector, numbers))
        self._line[SENT] = number + 1
        return True

    def ask(self, method: str, vector: Tensor | None = None, *numbers: float) -> Answer:
        return Answer(self, self._packed(None, method, vector, numbers))

    def _packed(
        self, number: int | None, method: str, vector: Tensor | None, numbers: tuple[float, ...]
    ) -> bytes:
        if vector is not None and vector.numel() > self._numbers:
            raise ValueError(
                f"{vector.numel()} numbers do not fit messages of {self._numbers}: "
                "raise numbers= of host(...)"
            )
        given = tuple(float(each) for each in numbers)
        return pickle.dumps(
            (number, method, None if vector is None else to_array(vector), given), 5
        )

    def send(self, message: bytes, answer_to: socket.socket | None = None) -> None:
        """Sends piece by piece. The first piece carries the pipe for the answer."""
        pieces = memoryview(message)
        pipe = [] if answer_to is None else [array.array("i", [answer_to.fileno()])]
        for at in range(0, len(pieces), PIECE_BYTES):
            head = PIECE.pack(self._client, at, len(pieces))
            along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, each) for each in pipe if at == 0]
            self._put([head, pieces[at : at + PIECE_BYTES]], along)

    def _put(self, piece: list[Any], along: list[Any]) -> None:
        while True:  # a host that does not fetch it hangs, and is restarted
            with suppress(BlockingIOError):
                self._inlet.socket.sendmsg(piece, along, socket.MSG_DONTWAIT)
                return
            with control.waiting():
                self.sleep(self._inlet.socket, select.POLLOUT, NAP_S)

    def sleep(self, end: socket.socket, event: int, timeout_s: float) -> None:
        """Sleeps until this end can be read or written."""
        if self._look is None:
            wait([(end, event)], timeout_s)
        else:
            wait([(end, event)], min(timeout_s, LOOK_S))
            self._look()

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        return Handle, (self.name, self._inlet, self._lines, client, self._numbers, self._depth)


Ends = tuple[Wire, Array]  # what the host reads, and where it counts


def make(name: str, *, numbers: int, depth: int, look: Callable[[], None]) -> tuple[Ends, Handle]:
    outlet, inlet = (
        Wire(end.detach()) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    )
    lines = segment.allocate((MOST_CLIENTS, WORDS), "int64")
    return (outlet, lines), Handle(name, inlet, lines, MAIN, numbers, depth, look)


# --- In the hosting process -----------------------------------------------------------------------


def serve(row: ControlRow, incarnation: int, factory: Callable[[], object], ends: Ends) -> None:  # noqa: ARG001
    """Takes one piece after another, for ever; sleeps while there is none."""
    host = Host(factory(), *ends)
    row.progress()
    while True:
        if host.take_piece():
            row.progress()
            continue
        host.sleep()
        row.progress()


class Host:
    def __init__(self, hosted: object, outlet: Wire, lines: Array) -> None:
        self._hosted, self._outlet, self._lines = hosted, outlet.socket, lines
        self._halves: dict[int, bytearray] = {}  # by client: the pieces that arrived
        self._pipes: dict[int, socket.socket] = {}  # by client: the pipe for the answer
        self._unsent: dict[socket.socket, memoryview] = {}
        # Requests lost with the last incarnation count as done, so no client waits for them.
        lines[:, DONE] = lines[:, [SENT, DONE]].max(1)

    def take_piece(self) -> bool:
        self._send_on()
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            space = socket.CMSG_SPACE(_FILE)
            piece, along, _, _ = self._outlet.recvmsg(PIECE.size + PIECE_BYTES, space, flags)
        except BlockingIOError:
            return False
        client, at, size = PIECE.unpack_from(piece)
        if at == 0:  # an incomplete message before it will not be completed
            self._begin(client, along)
        half = self._halves.get(client)
        if half is None or len(half) != at:
            return True  # its beginning was lost with the last incarnation
        half += memoryview(piece)[PIECE.size :]
        if len(half) == size:
            self._serve(client, self._halves.pop(client), self._pipes.pop(client, None))
        return True

    def _begin(self, client: int, along: list[Any]) -> None:
        self._halves[client] = bytearray()
        if client in self._pipes:
            self._pipes.pop(client).close()
        for _, _, descriptor in along:
            number = array.array("i", descriptor[:_FILE])[0]
            self._pipes[client] = socket.socket(fileno=number)

    def _serve(self, client: int, message: bytearray, pipe: socket.socket | None) -> None:
        number, method, vector, numbers = pickle.loads(message)
        given = numbers if vector is None else (to_tensor(vector), *numbers)
        if pipe is None:
            getattr(self._hosted, method)(*given)
            self._lines[client, DONE] = max(self._lines[client, DONE], number + 1)
            return
        try:
            answer = "", packable(getattr(self._hosted, method)(*given))
        except Exception as error:
            answer = f"{method} raised {type(error).__name__}: {text_of(error)}", None
        content = pickle.dumps(answer, 5)
        self._unsent[pipe] = memoryview(ANSWER.pack(len(content)) + content)

    def _send_on(self) -> None:
        """Sends as much of the answers as fits. A client that does not read blocks no other."""
        for pipe, rest in list(self._unsent.items()):
            try:
                while rest:
                    rest = rest[pipe.send(rest, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._unsent[pipe] = rest
                continue
            except OSError:
                pass  # the asker is gone
            del self._unsent[pipe]
            pipe.close()

    def sleep(self) -> None:
        answers = [(pipe, select.POLLOUT) for pipe in self._unsent]
        wait([(self._outlet, select.POLLIN), *answers], NAP_S)
