"""An object in its own process: the handle of its clients, and the loop of its process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from manyhands.backends.processes import control, futex
from manyhands.backends.processes.control import LOOK_S, MAIN, NAP_S, ControlRow
from manyhands.backends.processes.mailbox import (
    ANSWERED,
    ASK,
    BOTH,
    DONE,
    ERROR,
    LONGEST_NAME,
    MOST_NUMBERS,
    NO_VECTOR,
    SENT,
    TAKEN,
    TELL,
    VALUE,
    VECTOR,
    Mailbox,
)  # fmt: skip
from manyhands.backends.processes.packing import Endpoint
from manyhands.types import Failure
from manyhands.types.errors import text_of

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE_S = 3600.0  # for an uncollected answer: a host that hangs is killed long before
FULL_S = 0.0002  # between two checks for room


class Answer:
    """A future. Its tensor is in shared memory and valid until the next `ask`."""

    def __init__(self, handle: Handle, number: int) -> None:
        self._handle, self._number = handle, number
        self._kept: tuple[int, Any] | None = None

    def result(self, timeout_s: float) -> Any:
        if self._kept is None:
            self._kept = self._handle.await_answer(self._number, timeout_s)
        kind, value = self._kept
        if kind == ERROR:
            raise Failure(f"{self._handle.name}: {value}")
        return value

    def ready(self) -> bool:
        return self._kept is not None or self._handle.has_answered(self._number)

    def keep(self) -> None:
        """Copies the answer if it was not read, before its memory is used again."""
        if self._kept is None:
            kind, value = self._handle.await_answer(self._number, PATIENCE_S)
            self._kept = kind, _copied(kind, value)


def _copied(kind: int, value: Any) -> Any:
    if kind == BOTH:
        return value[0].clone(), value[1]
    return value.clone() if kind == VECTOR else value


class Handle(Endpoint):
    """One client's end of the mailbox."""

    def __init__(
        self, name: str, mailbox: Mailbox, client: int, look: Callable[[], None] | None = None
    ) -> None:
        self.name, self.mailbox, self._client = name, mailbox, client
        self._look = look  # only main's: called while it waits
        self._line = mailbox.lines[client].data
        self._arrays = mailbox.arrays(client)
        self._asked: Answer | None = None

    @cached_property
    def _vectors(self) -> list[Tensor]:  # lazy: importing torch is slow
        return self.mailbox.vectors(self._client)

    def tell(self, method: str, vector: Tensor | None = None, *numbers: float) -> bool:
        done = max(self._line[DONE], self._line[ANSWERED])  # an answered request is done
        asking = self._asked is not None and not self._asked.ready()  # an ask has its own slot
        if self._line[SENT] - done >= self.mailbox.depth + asking:
            return False
        self._send(method, TELL, vector, numbers)
        return True

    def ask(self, method: str, vector: Tensor | None = None, *numbers: float) -> Answer:
        if self._asked is not None:
            self._asked.keep()
        self._await_room()
        self._asked = Answer(self, self._send(method, ASK, vector, numbers))
        return self._asked

    def _await_room(self) -> None:
        """Only a restarted client waits here, if the one before was killed with its ring full."""
        with control.waiting():
            while (
                self._line[SENT] - max(self._line[DONE], self._line[ANSWERED]) > self.mailbox.depth
            ):
                time.sleep(FULL_S)
                if self._look is not None:
                    self._look()

    def _send(
        self, method: str, kind: int, vector: Tensor | None, numbers: tuple[float, ...]
    ) -> int:
        self._check(method, vector, numbers)
        box, number = self.mailbox, self._line[SENT]
        length = NO_VECTOR if vector is None else vector.numel()
        box.write_request(self._client, number, method, kind, length, list(numbers))
        if vector is not None:
            self._arrays[number % box.ring][:length] = vector.detach().reshape(-1).cpu().numpy()
        box.publish(self._client, number)
        return int(number)

    def _check(self, method: str, vector: Tensor | None, numbers: tuple[float, ...]) -> None:
        if len(method) > LONGEST_NAME or len(numbers) > MOST_NUMBERS:
            raise ValueError(f"{method} with {len(numbers)} numbers is too long for a message")
        if vector is not None and vector.numel() > self.mailbox.numbers:
            raise ValueError(
                f"{vector.numel()} numbers do not fit messages of {self.mailbox.numbers}: "
                "raise numbers= of host(...)"
            )

    def has_answered(self, number: int) -> bool:
        return bool(self._line[ANSWERED] > number)

    def await_answer(self, number: int, timeout_s: float) -> tuple[int, Any]:
        address = self.mailbox.answered_address(self._client)
        deadline = time.monotonic() + timeout_s
        with control.waiting():
            while (answered := self._line[ANSWERED]) <= number:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"{self.name} has not answered for {timeout_s:g} s")
                self._sleep(address, answered, left_s)
        return self._read()

    def _sleep(self, address: int, answered: int, left_s: float) -> None:
        if self._look is None:
            futex.wait(address, answered, min(left_s, NAP_S))
        else:
            futex.wait(address, answered, min(left_s, LOOK_S))
            self._look()

    def _read(self) -> tuple[int, Any]:
        kind, length, data = self.mailbox.read_answer(self._client)
        if kind in (VALUE, ERROR):
            return kind, data
        vector = self._vectors[-1][:length]
        return kind, vector if kind == VECTOR else (vector, data)

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        self.mailbox.reserve(client)
        return self.end_of(client)

    def end_of(self, client: int) -> tuple[Any, ...]:
        """Without memory for this client: it may be a client on another node."""
        return Handle, (self.name, self.mailbox, client)


def make(
    name: str, *, numbers: int, depth: int, look: Callable[[], None]
) -> tuple[Mailbox, Handle]:
    mailbox = Mailbox(None, numbers, depth)
    mailbox.reserve(MAIN)
    return mailbox, Handle(name, mailbox, MAIN, look)


# --- In the hosting process -----------------------------------------------------------------------


def serve(
    row: ControlRow,
    incarnation: int,  # noqa: ARG001
    factory: Callable[[], object],
    mailbox: Mailbox,
) -> None:
    """Serves the oldest request first, for ever; sleeps while there is none."""
    host = Host(factory(), mailbox)
    host.forget_unfinished()
    row.progress()
    while True:
        heard = mailbox.heard()
        if host.serve_oldest():
            row.progress()
            continue
        mailbox.sleep(heard, NAP_S)
        row.progress()


class Host:
    def __init__(self, hosted: object, mailbox: Mailbox) -> None:
        self._hosted, self._mailbox = hosted, mailbox
        self._vectors: dict[int, list[Tensor]] = {}

    def forget_unfinished(self) -> None:
        """Clears the request in which the last incarnation died: drops a tell, repeats an ask."""
        lines = self._mailbox.lines
        lines[:, DONE] = lines[:, [DONE, ANSWERED]].max(1)  # it may have died just after answering
        for client in (lines[:, TAKEN] != lines[:, DONE]).nonzero()[0].tolist():
            _, kind, _, _ = self._mailbox.read_request(client, int(lines[client, DONE]))
            if kind == TELL:
                lines[client, DONE] = lines[client, TAKEN]

    def serve_oldest(self) -> bool:
        box = self._mailbox
        client = box.oldest()
        if client is None:
            return False
        number = int(box.lines[client, DONE])
        request = box.read_request(client, number)
        if request[1] == ASK and box.oldest() != client:
            return True  # an older tell became visible meanwhile: serve that first
        box.lines[client, TAKEN] = number + 1
        self._serve(client, number, *request)
        box.lines[client, DONE] = number + 1
        return True

    def _serve(
        self, client: int, number: int, method: str, kind: int, length: int, numbers: Any
    ) -> None:
        given: tuple[Any, ...] = numbers
        if length != NO_VECTOR:
            vector = self._vectors_of(client)[number % self._mailbox.ring][:length]
            given = (vector, *numbers)
        if kind == TELL:
            getattr(self._hosted, method)(*given)
            return
        try:
            answer = self._lay_out(client, getattr(self._hosted, method)(*given))
        except Exception as error:
            answer = ERROR, 0, f"{method} raised {type(error).__name__}: {text_of(error)}"
        self._mailbox.write_answer(client, number, *answer)

    def _lay_out(self, client: int, value: Any) -> tuple[int, int, Any]:
        """Writes the answer's vector; returns its kind, the vector's length, its plain data."""
        if _is_tensor(value):
            kind, vector, data = VECTOR, value, None
        elif isinstance(value, tuple) and len(value) == 2 and _is_tensor(value[0]):
            kind, (vector, data) = BOTH, value
        else:
            return VALUE, 0, value
        length = vector.numel()
        self._vectors_of(client)[-1][:length].copy_(vector.detach().reshape(-1))
        return kind, length, data

    def _vectors_of(self, client: int) -> list[Tensor]:
        if client not in self._vectors:
            self._vectors[client] = self._mailbox.vectors(client)
        return self._vectors[client]


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
