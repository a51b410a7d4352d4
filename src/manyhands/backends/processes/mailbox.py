"""The shared memory between a hosted object and its clients: rings of requests, and answers.

Every client has its own ring with one writer, so no lock is needed. A request exists once the
client's counter `sent` has passed it, so a client that dies while it writes does no harm. Requests
carry the time they were sent at; the host serves the oldest of all clients first.
"""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.backends.processes import futex, segment
from manyhands.backends.processes.control import MOST_CLIENTS, WORDS
from manyhands.types import Array

if TYPE_CHECKING:
    from torch import Tensor

SENT, TAKEN, DONE, ANSWERED = range(4)  # a client's line; the client writes SENT, the host the rest
TELL, ASK = range(2)
REQUEST = struct.Struct("<32sqqq8d")  # method, kind, length, count of numbers, numbers
ANSWER = struct.Struct("<qqq")  # kind, length, bytes of plain data
VALUE, VECTOR, BOTH, ERROR = range(4)  # kinds of answers
MOST_NUMBERS, LONGEST_NAME = 8, 32
DATA_BYTES = 16_384  # of plain data in an answer
NO_VECTOR = -1
BELL_BYTES = segment.PAGE_BYTES


class Mailbox:
    def __init__(self, memory: segment.Segment | None, numbers: int, depth: int) -> None:
        """Allocates memory if given none. It holds `depth` tells and one ask of each client."""
        self.numbers, self.depth, self.ring = numbers, depth, depth + 1
        lines = MOST_CLIENTS * WORDS * 8
        self._stamps_at = BELL_BYTES + lines
        self._heads_at = segment.pages(self._stamps_at + MOST_CLIENTS * self.ring * 8)
        self._vector_bytes = -(-numbers * 4 // segment.ALIGN_BYTES) * segment.ALIGN_BYTES
        self._answer_at = self.ring * REQUEST.size
        self._head_bytes = segment.pages(self._answer_at + ANSWER.size + DATA_BYTES)
        self._client_bytes = segment.pages(self._head_bytes + (self.ring + 1) * self._vector_bytes)
        if memory is None:
            memory = segment.sparse(self._heads_at + MOST_CLIENTS * self._client_bytes)
            memory.reserve(0, self._heads_at)
        self.memory, self._bytes = memory, memoryview(memory)
        self._bell = memory.array(0, (1,), np.int64).data
        self.lines = memory.array(BELL_BYTES, (MOST_CLIENTS, WORDS), np.int64)
        self._sent, self._done = self.lines[:, SENT], self.lines[:, DONE]
        self._stamps = memory.array(self._stamps_at, (MOST_CLIENTS, self.ring), np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mailbox, (self.memory, self.numbers, self.depth)

    def reserve(self, client: int) -> None:
        self.memory.reserve(self._client_at(client), self._client_bytes)

    # --- Addresses ----------------------------------------------------------------------------

    def _client_at(self, client: int) -> int:
        return self._heads_at + client * self._client_bytes

    def _request_at(self, client: int, number: int) -> int:
        return self._client_at(client) + number % self.ring * REQUEST.size

    def arrays(self, client: int) -> list[Array]:
        """One for each request of the ring; the last is the answer's."""
        at = self._client_at(client) + self._head_bytes
        places = [at + i * self._vector_bytes for i in range(self.ring + 1)]
        return [self.memory.array(place, (self.numbers,), "float32") for place in places]

    def vectors(self, client: int) -> list[Tensor]:
        """The same as tensors."""
        import torch

        return [torch.from_numpy(array) for array in self.arrays(client)]

    def answered_address(self, client: int) -> int:
        return segment.address_of(self.lines[client]) + 8 * ANSWERED

    # --- Requests -----------------------------------------------------------------------------

    def write_request(
        self, client: int, number: int, method: str, kind: int, length: int, values: list[float]
    ) -> None:
        name, padded = method.encode(), values + [0.0] * (MOST_NUMBERS - len(values))
        at = self._request_at(client, number)
        REQUEST.pack_into(self._bytes, at, name, kind, length, len(values), *padded)

    def publish(self, client: int, number: int) -> None:
        """Raises the counter last, then wakes the host. The bell never has the same value twice."""
        stamp = time.monotonic_ns()
        self._stamps[client, number % self.ring] = stamp
        self.lines[client, SENT] = number + 1
        self._bell[0] = stamp
        futex.wake(self.memory.address)

    def read_request(self, client: int, number: int) -> tuple[str, int, int, tuple[float, ...]]:
        """Method, kind, the vector's length, numbers."""
        at = self._request_at(client, number)
        name, kind, length, count, *values = REQUEST.unpack_from(self._bytes, at)
        return name.rstrip(b"\0").decode(), kind, length, tuple(values[:count])

    def oldest(self) -> int | None:
        """The client whose request has waited longest."""
        (waiting,) = (self._sent != self._done).nonzero()
        if len(waiting) < 2:
            return int(waiting[0]) if len(waiting) else None
        stamps = self._stamps[waiting, self._done[waiting] % self.ring]
        return int(waiting[stamps.argmin()])

    def waiting(self) -> list[tuple[int, int]]:
        """Client and number of all requests that wait, the oldest first."""
        (clients,) = (self._sent != self._done).nonzero()
        found = [
            (int(self._stamps[client, number % self.ring]), client, number)
            for client in clients.tolist()
            for number in range(int(self._done[client]), int(self._sent[client]))
        ]
        return [(client, number) for _, client, number in sorted(found)]

    def heard(self) -> int:
        return int(self._bell[0])

    def sleep(self, heard: int, timeout_s: float) -> None:
        """Sleeps until the bell changes from `heard`."""
        futex.wait(self.memory.address, heard, timeout_s)

    # --- Answers ------------------------------------------------------------------------------

    def write_answer(self, client: int, number: int, kind: int, length: int, data: Any) -> None:
        content = json.dumps(data, default=lambda value: value.item()).encode()
        if len(content) > DATA_BYTES:
            kind, content = ERROR, b'"its answer is too long; put vectors in a tensor"'
        at = self._client_at(client) + self._answer_at
        ANSWER.pack_into(self._bytes, at, kind, length, len(content))
        at += ANSWER.size
        self._bytes[at : at + len(content)] = content
        self.lines[client, ANSWERED] = number + 1
        futex.wake(self.answered_address(client))

    def read_answer(self, client: int) -> tuple[int, int, Any]:
        """Kind, the vector's length, plain data."""
        at = self._client_at(client) + self._answer_at
        kind, length, size = ANSWER.unpack_from(self._bytes, at)
        at += ANSWER.size
        return kind, length, json.loads(bytes(self._bytes[at : at + size]))
