"""Tells and asks of processes on other nodes, to hosted objects on main's node.

Each node has its own mailbox of a hosted object. Away from main's node a relay serves it: it sends
what waits there as one delivery, and waits for the answer before it sends the next. So a client has
room again once its tell is in the mailbox on main's node, and `depth` tells of it are under way at
most. Deliveries are numbered. One that came already is not taken again; one that was lost is sent
again. Equal questions that wait at the same time are asked once for all processes of the node.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from manyhands.backends.processes import futex
from manyhands.backends.processes.control import NAP_S
from manyhands.backends.processes.mailbox import (
    ANSWERED,
    BOTH,
    DONE,
    NO_VECTOR,
    SENT,
    TELL,
    VECTOR,
    Mailbox,
)
from manyhands.backends.ray import pieces
from manyhands.backends.ray.boxes import Box
from manyhands.backends.ray.places import Place
from manyhands.types import Array, Failure

DELIVERY_BYTES = 8_000_000  # Ray sends up to 10 MB with a call itself
ANSWER_S = 10.0  # without an answer a delivery counts as lost, and is sent again
AGAIN_S = 0.02  # before a delivery is repeated that did not get through
BUSY_S = 1.0  # how long a delivery that came twice waits for the first
FULL_S = 0.0002  # between two checks for room
FENCED, BUSY = "fenced", "busy"


class Request(NamedTuple):
    method: str
    kind: int
    length: int  # of its vector
    numbers: tuple[float, ...]


class Answer(NamedTuple):
    kind: int
    length: int
    data: Any
    vector: Array | None


# --- Away from main's node ------------------------------------------------------------------------


class Relay(threading.Thread):
    """Serves the mailbox of one hosted object."""

    def __init__(self, node: int, hub: Any, box: Box, ending: Callable[[], Any]) -> None:
        """`ending`: a context that ends the process with this thread."""
        super().__init__(name=f"relay {box.place}", daemon=True)
        self._node, self.hub, self._place, self._mailbox = node, hub, box.place, box.mailbox
        self._ending, self._number, self.over = ending, 0, False
        self._arrays: dict[int, list[Array]] = {}  # by client

    def run(self) -> None:
        with self._ending():
            while not self.over:
                heard = self._mailbox.heard()
                if waiting := self._mailbox.waiting():
                    self._relay(waiting)
                else:
                    self._mailbox.sleep(heard, NAP_S)

    def told(self) -> Array:
        """By client: how many requests it has made."""
        made: Array = self._mailbox.lines[:, SENT].copy()
        return made

    def has_relayed(self, told: Array) -> bool:
        return bool((self._mailbox.lines[:, DONE] >= told).all())

    def _relay(self, waiting: Sequence[tuple[int, int]]) -> None:
        """As many of the requests as one delivery holds: the tells, and then the questions."""
        tells, askers, vectors = list[Request](), dict[Any, list[tuple[int, int]]](), list[Array]()
        taken, asked = list[tuple[int, int]](), list[Array]()
        for client, number in waiting:
            request = Request(*self._mailbox.read_request(client, number))
            vector = self._vector(client, number, request.length)
            if taken and sum(map(_size, vectors + asked)) + _size(vector) > DELIVERY_BYTES:
                break
            taken.append((client, number))
            if request.kind == TELL:
                tells.append(request)
                vectors.append(vector)
                continue
            alone = (client, number) if request.length != NO_VECTOR else None
            if (request, alone) not in askers:
                asked.append(vector)
            askers.setdefault((request, alone), []).append((client, number))
        questions = [request for request, _ in askers]
        answers = self._delivered([*tells, *questions], pieces.cut(vectors + asked))
        if answers is None:
            return
        for clients, answer in zip(askers.values(), answers, strict=True):
            self._write(clients, Answer(*answer))
        for client, number in taken:
            self._mailbox.lines[client, DONE] = number + 1

    def _vector(self, client: int, number: int, length: int) -> Array:
        if client not in self._arrays:
            self._arrays[client] = self._mailbox.arrays(client)
        return self._arrays[client][number % self._mailbox.ring][: max(0, length)]

    def _write(self, clients: Sequence[tuple[int, int]], answer: Answer) -> None:
        for client, number in clients:
            if answer.vector is not None:
                self._arrays[client][-1][: answer.length] = answer.vector
            self._mailbox.write_answer(client, number, answer.kind, answer.length, answer.data)

    def _delivered(self, requests: list[Request], content: list[bytes]) -> list[Answer] | None:
        """The answers to all questions. None: the run is over."""
        import ray

        self._number += 1
        plain = [tuple(request) for request in requests]
        given = (self._node, self._place, self._number, plain, *content)
        while not self.over:
            try:
                answer = ray.get(self.hub.deliver.remote(*given), timeout=ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError:
                time.sleep(AGAIN_S)
                continue
            if answer == FENCED:
                os._exit(1)  # main has placed these processes elsewhere
            if answer != BUSY:
                return list(answer)
            time.sleep(AGAIN_S)
        return None


def _size(array: Array) -> int:
    return int(array.nbytes)


# --- On main's node -------------------------------------------------------------------------------


class Deliveries:
    """Each other node is one more client of the mailboxes on main's node."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places
        self._clients: dict[int, int] = {}  # by node: the client number that only it has
        self._turns: defaultdict[tuple[int, int], threading.Lock] = defaultdict(threading.Lock)
        self._last: dict[tuple[int, int], tuple[int, list[Answer]]] = {}  # by node and place
        self._over = False

    def welcome(self, node: int, client: int) -> None:
        self._clients[node] = client

    def part_with(self, node: int) -> None:
        self._clients.pop(node, None)
        for key in [key for key in self._last if key[0] == node]:
            self._last.pop(key, None)

    def end(self) -> None:
        self._over = True

    def standing(self, node: int) -> str:
        """Why nothing of this node is taken now; empty if it is."""
        if node not in self._clients:
            return FENCED
        return BUSY if self._over else ""

    def take(
        self, node: int, place: int, number: int, requests: list[Any], content: tuple[bytes, ...]
    ) -> Any:
        """Once; the answers to all questions."""
        if standing := self.standing(node):
            return standing
        client = self._clients[node]
        turn = self._turns[client, place]
        if not turn.acquire(timeout=BUSY_S):
            return BUSY
        try:
            last, answers = self._last.get((node, place), (0, []))
            if last != number:
                answers = list(self._answers((node, client), place, number, requests, content))
                self._last[node, place] = number, answers
            return answers
        finally:
            turn.release()

    def _answers(
        self, sender: tuple[int, int], place: int, number: int, requests: list[Any],
        content: tuple[bytes, ...],
    ) -> Iterator[Answer]:  # fmt: skip
        (node, client), box = sender, self._places[place]
        assert isinstance(box, Box)
        line = Line(box.mailbox, client, lambda: not self.standing(node))
        is_old = number <= box.seen[node]  # the node runner here died before it had answered
        reader = pieces.Reader(content)
        for plain in requests:
            request = Request(*plain)
            if request.kind == TELL and is_old:
                reader.read(np.empty(max(0, request.length), np.float32))
            elif request.kind == TELL:
                line.send(request, reader)
            else:
                box.seen[node] = number  # the tells before it are in the mailbox
                yield line.answer(line.send(request, reader))
        box.seen[node] = number


class Line:
    """A client's end of a mailbox, without torch."""

    def __init__(self, mailbox: Mailbox, client: int, is_welcome: Callable[[], bool]) -> None:
        mailbox.reserve(client)
        self._mailbox, self._client, self._is_welcome = mailbox, client, is_welcome
        self._line, self._arrays = mailbox.lines[client], mailbox.arrays(client)

    def send(self, request: Request, reader: pieces.Reader) -> int:
        """Waits for room, and returns its number."""
        mailbox, number = self._mailbox, int(self._line[SENT])
        while number - max(self._line[DONE], self._line[ANSWERED]) >= mailbox.ring:
            self._wait()
            time.sleep(FULL_S)
        method, kind, length, numbers = request
        reader.read(self._arrays[number % mailbox.ring][: max(0, length)])
        mailbox.write_request(self._client, number, method, kind, length, list(numbers))
        mailbox.publish(self._client, number)
        return number

    def answer(self, number: int) -> Answer:
        address = self._mailbox.answered_address(self._client)
        while (answered := int(self._line[ANSWERED])) <= number:
            self._wait()
            futex.wait(address, answered, NAP_S)
        kind, length, data = self._mailbox.read_answer(self._client)
        has_vector = kind in (VECTOR, BOTH)
        return Answer(kind, length, data, self._arrays[-1][:length].copy() if has_vector else None)

    def _wait(self) -> None:
        if not self._is_welcome():
            raise Failure("this node was given up, or the run is over")
