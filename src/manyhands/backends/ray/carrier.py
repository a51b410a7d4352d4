"""The threads that carry: from a node to main's node, and notices from there to all nodes."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from manyhands.backends.ray.carrying import (
    Batch,
    Incoming,
    Notices,
    Outgoing,
    Punching,
    apply_tables,
    note_left,
)
from manyhands.backends.ray.places import Live, Notice, Place, Stream
from manyhands.backends.ray.relaying import FENCED, Deliveries
from manyhands.backends.ray.rounds import Proxies
from manyhands.types import Array

LOOK_S = 0.005  # between two looks for something new
SEND_S = 0.02  # between two batches of one node
LARGE_S, LARGE_BYTES = 0.04, 1_000_000  # after one of so many bytes: fewer, larger ones cost less
MOST_UNDER_WAY = 4  # batches
ANSWER_S = 10.0  # without an answer a batch counts as lost, and is sent again


class Carrier(threading.Thread):
    """Away from main's node: sends batches, and writes the tables that come back."""

    def __init__(self, node: int, hub: Any, places: Mapping[int, Place]) -> None:
        super().__init__(name="carrier", daemon=True)
        self._node, self._hub, self._places = node, hub, places
        self._outgoing, self._punching = Outgoing(places), Punching()
        self._number = 0
        self._waiting: deque[tuple[int, Batch | None]] = deque()  # not acknowledged, oldest first
        self._under_way: deque[tuple[int, Any, float]] = deque()  # number, answer, since when
        self._next_s, self._over = 0.0, False
        self._to_flush, self._flushed = threading.Event(), threading.Event()
        self._last = 0  # the number of the batch that ends what is flushed

    def follow(self, hub: Any) -> None:
        self._hub = hub

    def flush(self, timeout_s: float) -> bool:
        self._flushed.clear()
        self._to_flush.set()
        return self._flushed.wait(timeout_s)

    def end(self) -> None:
        self._over = True

    def run(self) -> None:
        with ending_the_process():
            while not self._over:
                if self._to_flush.is_set():
                    self._to_flush.clear()
                    self._gather(with_unfinished=True)
                    self._last = self._number
                elif time.monotonic() >= self._next_s and len(self._waiting) < MOST_UNDER_WAY:
                    self._gather()
                self._send()
                self._hear()

    def _gather(self, *, with_unfinished: bool = False) -> None:
        """New batches. If there is none, an empty one, since its answer has the tables."""
        size = 0
        for batch in self._outgoing.batches(with_unfinished=with_unfinished):
            self._add(batch)
            size += sum(map(len, batch.content))
        self._next_s = time.monotonic() + (SEND_S if size < LARGE_BYTES else LARGE_S)
        if not self._waiting:
            self._add(None)

    def _add(self, batch: Batch | None) -> None:
        self._number += 1
        self._waiting.append((self._number, batch))

    def _send(self) -> None:
        last = self._under_way[-1][0] if self._under_way else 0
        for number, batch in self._waiting:
            if len(self._under_way) >= MOST_UNDER_WAY:
                return
            if number > last:
                self._under_way.append((number, self._sent(number, batch), time.monotonic()))

    def _sent(self, number: int, batch: Batch | None) -> Any:
        if batch is None:
            return self._hub.take.remote(self._node, number, None)
        return self._hub.take.remote(self._node, number, batch._replace(content=()), *batch.content)

    def _hear(self) -> None:
        """The oldest answer. After an error all that was under way is sent again, in order."""
        import ray

        rest_s = max(LOOK_S, self._next_s - time.monotonic())  # until there is something to send
        if not self._under_way:
            self._to_flush.wait(rest_s)
            return
        number, answer, since_s = self._under_way[0]
        try:
            heard = ray.get(answer, timeout=rest_s)
        except ray.exceptions.GetTimeoutError:
            if time.monotonic() - since_s > ANSWER_S:
                self._under_way.clear()
            return
        except ray.exceptions.RayError:
            self._under_way.clear()
            time.sleep(LOOK_S)
            return
        if heard == FENCED:
            os._exit(1)  # main has placed these processes elsewhere
        self._under_way.popleft()
        seen, tables = heard
        if seen < number:  # one before it was lost: all are sent again
            self._under_way.clear()
        self._done(seen, tables)

    def _done(self, seen: int, tables: Mapping[int, Array]) -> None:
        """All up to this number were written on main's node."""
        while self._waiting and self._waiting[0][0] <= seen:
            _, batch = self._waiting.popleft()
            for place, entries in (batch.streams if batch else {}).items():
                stream = self._places[place]
                assert isinstance(stream, Stream)
                note_left(stream, entries)
                self._punching.punch(stream)
        apply_tables(self._places, tables)
        if self._last and seen >= self._last:
            self._last = 0
            self._flushed.set()


@contextmanager
def ending_the_process() -> Iterator[None]:
    """A thread that fails must not leave a node runner that looks alive."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Hub(threading.Thread):
    """On main's node: writes what nodes send, and sends each newest notice to all of them."""

    def __init__(self, places: Mapping[int, Place], seen: Array) -> None:
        """`seen`: by node, the number of its last batch. In main's memory: it outlives this."""
        super().__init__(name="hub", daemon=True)
        self._places, self._seen = places, seen
        self._incoming, self._notices = Incoming(places), Notices(places)
        self.deliveries = Deliveries(places)
        self.proxies = Proxies(places, self.deliveries.standing)
        self._nodes: dict[int, tuple[Any, frozenset[int]]] = {}
        self._known: dict[int, dict[int, int]] = {}  # by node: the notices that it has
        self._under_way: dict[int, tuple[Any, int, int, float]] = {}  # by node
        self._sent_s: dict[tuple[int, int], float] = {}  # by node and place: when it was sent last
        self._over = False

    def welcome(self, node: int, runner: Any, wanted: frozenset[int], client: int) -> None:
        """`client`: its number in the mailboxes here."""
        self._known[node] = {}
        self._nodes[node] = runner, wanted
        self.deliveries.welcome(node, client)

    def part_with(self, node: int) -> None:
        self._nodes.pop(node, None)
        self.deliveries.part_with(node)

    def end(self) -> None:
        self._over = True
        self.deliveries.end()

    def take(self, node: int, number: int, batch: Batch | None) -> Any:
        """Writes a batch once, in order. Returns the last number written, and the tables."""
        if node not in self._nodes:
            return FENCED
        if number == int(self._seen[node]) + 1:
            if batch is not None:
                self._incoming.write(node, batch)
            self._seen[node] = number
        self._incoming.put_records()
        wanted = self._nodes[node][1]
        leases = self._incoming.leases(node, wanted, nodes=len(self._nodes))
        return int(self._seen[node]), self._incoming.tables(wanted) | leases

    # --- Notices ----------------------------------------------------------------------------------

    def run(self) -> None:
        with ending_the_process():
            self._publish_until_over()

    def _publish_until_over(self) -> None:
        import ray

        while not self._over:
            made: dict[tuple[int, int], Any] = {}  # what was put for all nodes, by place and number
            for node, (runner, wanted) in list(self._nodes.items()):
                if self._is_free(ray, node):
                    self._send(ray, node, runner, wanted, made)
            time.sleep(LOOK_S)

    def _is_free(self, ray: Any, node: int) -> bool:
        """Whether nothing is under way to this node. Notes what has arrived there."""
        if node not in self._under_way:
            return True
        answer, place, number, since_s = self._under_way[node]
        try:
            ray.get(answer, timeout=0)
            self._known[node][place] = number
        except ray.exceptions.GetTimeoutError:
            if time.monotonic() - since_s < ANSWER_S:
                return False
        except ray.exceptions.RayError:
            pass  # it is sent again
        del self._under_way[node]
        return True

    def _send(
        self, ray: Any, node: int, runner: Any, wanted: frozenset[int], made: dict[Any, Any]
    ) -> None:
        """One notice that the node does not have, as it is now. The one sent longest ago first."""
        newer = [pair for pair in self._notices.newer(self._known[node]) if pair[0] in wanted]
        if not newer:
            return
        place, number = min(newer, key=lambda pair: self._sent_s.get((node, pair[0]), 0.0))
        if (place, number) not in made:
            notice = self._places[place]
            assert isinstance(notice, Notice | Live)
            first, *arrays = notice.given()
            made[place, number] = int(first), ray.put(arrays)
        read, content = made[place, number]
        answer = runner.publish.remote(place, read, content)
        self._sent_s[node, place] = now_s = time.monotonic()
        self._under_way[node] = answer, place, read, now_s
