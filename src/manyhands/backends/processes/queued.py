"""A hosted object at the end of a queue: every message is pickled and goes through the kernel.

One queue of small pieces for all clients, as `multiprocessing.Queue` is one, and a pipe back for
every question. It keeps the promises of `hosted` but one, that a tell never waits: it takes as long
as its pieces take to be fetched. And of what is told while the host dies, as much may be lost as
the queue held pieces of. Everything else follows from the order of the queue: a tell that returned
lies before every later question. It is here to be measured against shared slots, which copy a
vector once where this copies it half a dozen times.
"""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
import struct
import sys
import time
import weakref
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
    Desk,
)
from manyhands.backends.processes.packing import Endpoint, Inherited
from manyhands.types import Array, Failure

if TYPE_CHECKING:
    from torch import Tensor

SENT, DONE = range(2)  # tells: the client counts what it sent, the host what it did
PIECE = struct.Struct("<qqq")  # whose, where in the message, bytes of the whole message
PIECE_BYTES = 65_536  # what a pipe holds
ANSWER = struct.Struct("<q")  # bytes that follow
_FILE = array.array("i", [0]).itemsize


class Wire(Inherited):
    """One end of the queue; every process has its own number for it, all mean the same."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self.descriptor, self.socket = descriptor, socket.socket(fileno=descriptor)
        weakref.finalize(self, self.socket.close).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Wire, (self.descriptor,)


# --- A client's end -------------------------------------------------------------------------------


class Answer:
    """A future. What arrives on its pipe is whole, or the host has died: then it asks again."""

    def __init__(self, handle: Handle, message: bytes) -> None:
        self._handle, self._message = handle, message
        self._arrived = bytearray()
        self._kept: tuple[str, Any] | None = None
        self._ask()

    def _ask(self) -> None:
        self._arrived.clear()
        self._pipe, far = socket.socketpair()
        with far:  # a copy of it travels
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
        """What is there now; whether it is all."""
        try:
            while some := self._pipe.recv(PIECE_BYTES, socket.MSG_DONTWAIT):
                self._arrived += some
        except BlockingIOError:
            return False
        self._pipe.close()
        if self._is_whole():
            self._kept = _unpacked(memoryview(self._arrived)[ANSWER.size :])
            return True
        self._ask()
        return False

    def _is_whole(self) -> bool:
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
        self._look = look  # main's: what it does while it waits
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
                "say host(..., numbers=)"
            )
        given = tuple(float(each) for each in numbers)
        return pickle.dumps((number, method, None if vector is None else _plain(vector), given), 5)

    def send(self, message: bytes, answer_to: socket.socket | None = None) -> None:
        """Piece by piece; the first takes the pipe along on which the answer is awaited."""
        pieces = memoryview(message)
        pipe = [] if answer_to is None else [array.array("i", [answer_to.fileno()])]
        for at in range(0, len(pieces), PIECE_BYTES):
            head = PIECE.pack(self._client, at, len(pieces))
            along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, each) for each in pipe if at == 0]
            self._put([head, pieces[at : at + PIECE_BYTES]], along)

    def _put(self, piece: list[Any], along: list[Any]) -> None:
        while True:  # a host that does not fetch it hangs, and is killed and followed
            with suppress(BlockingIOError):
                self._inlet.socket.sendmsg(piece, along, socket.MSG_DONTWAIT)
                return
            with control.waiting():
                self.sleep(self._inlet.socket, select.POLLOUT, NAP_S)

    def sleep(self, end: socket.socket, event: int, timeout_s: float) -> None:
        """Until that end can be read or written."""
        if self._look is None:
            _wait([(end, event)], timeout_s)
        else:
            _wait([(end, event)], min(timeout_s, LOOK_S))
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


def serve(desk: Desk, incarnation: int, factory: Callable[[], object], ends: Ends) -> None:  # noqa: ARG001
    """For ever: a piece at a time; asleep while there is none."""
    host = Host(factory(), *ends)
    desk.progress()
    while True:
        if host.take_piece():
            desk.progress()
            continue
        host.sleep()
        desk.progress()


class Host:
    def __init__(self, hosted: object, outlet: Wire, lines: Array) -> None:
        self._hosted, self._outlet, self._lines = hosted, outlet.socket, lines
        self._halves: dict[int, bytearray] = {}  # by client: what of its message has arrived
        self._pipes: dict[int, socket.socket] = {}  # by client: where the answer is to go
        self._unsent: dict[socket.socket, memoryview] = {}
        # Nobody shall wait for what died with the host before; what the queue holds comes on top.
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
        if at == 0:  # what came before of another message will not be completed any more
            self._begin(client, along)
        half = self._halves.get(client)
        if half is None or len(half) != at:
            return True  # the beginning died with the host before
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
        given = numbers if vector is None else (_tensor(vector), *numbers)
        if pipe is None:
            getattr(self._hosted, method)(*given)
            self._lines[client, DONE] = max(self._lines[client, DONE], number + 1)
            return
        try:
            answer = "", _packable(getattr(self._hosted, method)(*given))
        except Exception as error:
            answer = f"{method} raised {type(error).__name__}: {error}", None
        content = pickle.dumps(answer, 5)
        self._unsent[pipe] = memoryview(ANSWER.pack(len(content)) + content)

    def _send_on(self) -> None:
        """As much of the answers as fits into their pipes; who does not read keeps nobody."""
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
        _wait([(self._outlet, select.POLLIN), *answers], NAP_S)


# --- What travels ---------------------------------------------------------------------------------


def _wait(ends: list[tuple[socket.socket, int]], timeout_s: float) -> None:
    poller = select.poll()
    for end, event in ends:
        poller.register(end, event)
    poller.poll(timeout_s * 1000)


def _plain(vector: Tensor) -> Array:
    flat: Array = vector.detach().float().cpu().reshape(-1).numpy()
    return flat


def _tensor(array: Array) -> Tensor:
    import torch

    return torch.from_numpy(array)


class _Vector:
    """A tensor in an answer, as an array: so it is pickled without torch's own ways."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor, (self.array,)


def _packable(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _Vector(_plain(value))
    return tuple(map(_packable, value)) if isinstance(value, tuple) else value


def _unpacked(content: memoryview) -> tuple[str, Any]:
    error, value = pickle.loads(content)
    return error, value
