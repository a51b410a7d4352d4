"""The node runner: the one Ray actor of a node. It runs the processes of that node.

On main's node it has main's memory. Elsewhere it has its own copies of places, and a carrier. It
imports neither torch nor the user's code: its processes do. Calls of one kind come in order, and
have their own thread: `control` orders, `tick` news, `up` and `down` what is carried. Calls of the
kind `requests` wait for hosted objects, each in a thread of its own.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from manyhands.backends.processes import control, outbox, segment, spawn
from manyhands.backends.processes.control import MOST_CLIENTS
from manyhands.backends.processes.launched import Launched
from manyhands.backends.processes.packing import Inherited, Parcel
from manyhands.backends.processes.supervisor import Patience, SupervisedProcess
from manyhands.backends.ray import pieces
from manyhands.backends.ray.asking import Askers
from manyhands.backends.ray.carrier import Carrier, Hub, ending_the_process
from manyhands.backends.ray.carrying import Batch, parts
from manyhands.backends.ray.keeper import Keeper, News
from manyhands.backends.ray.passing import Receiver
from manyhands.backends.ray.places import Place, Stream
from manyhands.backends.ray.rounds import MOST_AWAY
from manyhands.types import Array, Refusal
from manyhands.types.delivered import Files

TICK_S = 0.2  # longest time without news for main
RELAY = MOST_CLIENTS - 1  # client number of the node runner on main's node
GROUPS = {"control": 1, "tick": 1, "up": 1, "down": 1, "requests": 2 * MOST_AWAY}


class Handed(NamedTuple):
    """Something packed by main. Descriptors in it have main's numbers."""

    body: bytes
    kept: tuple[tuple[int, int, int], ...]  # main's number, serial number, bytes; 0: an outbox
    here: str
    path: tuple[str, ...]
    files: Files  # the user's


class Order(NamedTuple):
    """A process to start."""

    role: str
    rank: int  # or the number of a hosted object
    incarnation: int
    client: int
    threads: int
    parcel: Handed
    outbox: int | None = None  # its serial number; None: a hosted object


class Answer(NamedTuple):
    news: News
    value: Any = None
    refusal: Refusal | None = None


class Descriptor(Inherited):
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor


class NodeRunner:
    def __init__(self, name: str, *, patience: Patience, imports: tuple[str, ...] = ()) -> None:
        spawn.prepare()
        self._name, self._patience, self._imports = name, patience, imports
        self._receiver: Receiver | None = None  # None: away from main's node
        self._made: dict[int, int] = {}  # there: serial -> descriptor
        self._keeper: Keeper | None = None
        self._places: dict[int, Place] = {}
        self._adopting = threading.Lock()  # `furnish` and `publish` write the same notices
        self._carrier: Carrier | None = None
        self._askers = Askers(self._places, ending_the_process)
        self._hub: Hub | None = None

    def pid(self) -> int:
        return os.getpid()

    # --- Memory -----------------------------------------------------------------------------------

    def connect(self, socket_name: str) -> int:
        """To main, on main's node. Main need not have accepted it yet. Returns this process' id."""
        if self._receiver is None:  # it may be asked twice
            self._receiver = Receiver(socket_name)
        return os.getpid()

    def furnish(self, table: Handed, places: Handed, given: dict[int, list[Array]]) -> None:
        """The control table, and places with what they hold. Those that are here stay."""
        if self._keeper is None:
            near = self._receiver is not None
            launched = Launched(self._unpacked(table), self._patience, self._imports)
            self._keeper = Keeper(self._name, launched, is_near=near)
            self._keeper.start()
        for place in self._unpacked(places):
            self._places.setdefault(place.place, place)
        with self._adopting:
            for number, content in given.items():
                self._places[number].adopt(content)

    def _unpacked(self, handed: Handed) -> Any:
        """An object over the memory that this node has."""
        numbers = self._numbers(handed)
        segment.renumber({number: os.dup(mine) for number, mine in numbers.items()})
        return pickle.loads(handed.body)

    def _numbers(self, handed: Handed) -> dict[int, int]:
        """Main's numbers of descriptors -> those here."""
        if self._receiver is not None:
            held = self._receiver.held(serial for _, serial, _ in handed.kept)
            return {number: held[serial] for number, serial, _ in handed.kept}
        return {number: self._own(serial, size) for number, serial, size in handed.kept}

    def _own(self, serial: int, size: int) -> int:
        """Memory of this node. Pages are taken when they are first used."""
        if serial not in self._made:
            made = os.memfd_create("manyhands", os.MFD_CLOEXEC)
            os.ftruncate(made, size)
            self._made[serial] = made
        return self._made[serial]

    # --- Processes --------------------------------------------------------------------------------

    def host(self, orders: list[Order], seen: int) -> Answer:
        def start(launched: Launched) -> None:
            there = {process.index for process in launched.hosts}
            for order in orders:
                if order.rank not in there:
                    launched.host(self._process(order))

        return self._answer(start, seen)

    def hire(self, orders: list[Order], seen: int) -> Answer:
        def start(launched: Launched) -> None:
            there = {process.index for process in launched.workers}
            new = [order for order in orders if order.rank not in there]  # it may come twice
            boxes = {order.rank: self._outbox(order) for order in new}
            launched.start([self._process(order) for order in new], boxes)

        return self._answer(start, seen)

    def _process(self, order: Order) -> SupervisedProcess:
        handed, numbers = order.parcel, self._numbers(order.parcel)
        kept: tuple[Any, ...] = tuple(Descriptor(mine) for mine in numbers.values())
        path = handed.path
        if self._receiver is None:  # main's paths are those of another machine
            path = tuple(dict.fromkeys((*sys.path, *path)))
        parcel = Parcel(handed.body, kept, handed.here, path, numbers, handed.files)
        return SupervisedProcess(
            order.client, order.role, order.rank, parcel, order.threads,
            incarnation=order.incarnation,
        )  # fmt: skip

    def _outbox(self, order: Order) -> outbox.Outbox:
        assert order.outbox is not None
        if self._receiver is not None:
            (mine,) = self._receiver.held([order.outbox]).values()
        else:
            mine = self._own(order.outbox, 0)
        return outbox.Outbox(os.dup(mine))

    def dismiss(self, seen: int) -> Answer:
        return self._answer(Launched.dismiss, seen)

    def park(self, timeout_s: float, step: bool, seen: int) -> Answer:
        return self._answer(lambda launched: launched.park(timeout_s, step=step), seen)

    def unpark(self, seen: int) -> Answer:
        return self._answer(lambda launched: launched.tell(control.GO), seen)

    def stop(self, seen: int) -> Answer:
        return self._answer(lambda launched: launched.tell(control.STOP), seen)

    def collect(self, timeout_s: float, seen: int) -> Answer:
        """The states of workers, pickled, by rank."""

        def save(launched: Launched) -> dict[int, bytes]:
            launched.save(timeout_s)
            found = ((index, box.content()) for index, box in launched.outboxes.items())
            return {index: content for index, content in found if content}

        return self._answer(save, seen)

    def close(self) -> None:
        """Ends all processes and the carriers."""
        for each in (self._carrier, self._askers, self._hub):
            if each is not None:
                each.end()
        if self._keeper is not None:
            self._keeper.order(Launched.close)

    def _answer(self, order: Callable[[Launched], Any], seen: int) -> Answer:
        assert self._keeper is not None
        value, refusal = None, None
        try:
            value = self._keeper.order(order)
        except Refusal as error:
            refusal = error
        return Answer(self._keeper.news(seen), value, refusal)

    # --- News -------------------------------------------------------------------------------------

    def tick(self, seen: int, version: int) -> tuple[News, int]:
        """Returns when something happened, at the latest after `TICK_S`. `seen`: faults."""
        if self._keeper is None:
            return News([], 0, [], frozenset(), None), 0
        version = self._keeper.wait_for_news(version, TICK_S)
        return self._keeper.news(seen), version

    # --- Carrying ---------------------------------------------------------------------------------

    def lead(self, batches_seen: Array) -> None:
        """On main's node: takes what other nodes send, and sends them notices."""
        if self._hub is None:
            self._hub = Hub(self._places, batches_seen)
            self._hub.start()

    def lead_with(self, seen: Handed) -> None:
        self.lead(self._unpacked(seen))

    def welcome(self, node: int, runner: Any, wanted: Iterable[int], client: int) -> None:
        """Another node's runner, the places that its processes use, and its client number here."""
        assert self._hub is not None
        self._hub.welcome(node, runner, frozenset(wanted), client)

    def part_with(self, node: int) -> None:
        """From now on nothing of this node is taken."""
        if self._hub is not None:
            self._hub.part_with(node)

    def take(self, node: int, number: int, batch: Batch | None, *content: bytes) -> Any:
        """`content`: that of the batch, which comes without it."""
        assert self._hub is not None
        return self._hub.take(node, number, batch and batch._replace(content=content))

    def deliver(self, node: int, place: int, number: int, requests: Any, *content: bytes) -> Any:
        """What processes of another node told and asked a hosted object."""
        assert self._hub is not None
        return self._hub.deliveries.take(node, place, number, requests, content)

    def meet(self, node: int, place: int, sender: Any, request: Any, *content: bytes) -> Any:
        """What a member of another node asks the group of this node."""
        assert self._hub is not None
        return self._hub.proxies.meet(node, place, sender, request, content)

    def follow(self, node: int, hub: Any) -> None:
        """Away from main's node: sends everything to this node runner from now on."""
        if self._carrier is None:
            self._carrier = Carrier(node, hub, self._places)
            self._carrier.start()
        else:
            self._carrier.follow(hub)
        self._askers.follow(node, hub)

    def fill(self, place: int, ranges: Array, *content: bytes) -> None:
        """Entries that a writer of this node reads."""
        stream = self._places[place]
        assert isinstance(stream, Stream)
        pieces.write(content, parts(stream, ranges))

    def publish(self, place: int, number: int, arrays: list[Array]) -> None:
        if place in self._places:  # other nodes may use more places
            with self._adopting:
                self._places[place].adopt([number, *arrays])  # type: ignore[list-item]

    def flush(self, timeout_s: float) -> bool:
        """Sends all that was written here, while no process writes. False: not in time."""
        told = self._askers.flush(timeout_s)
        return told and (self._carrier is None or self._carrier.flush(timeout_s))


KINDS = {
    "control": ("pid", "connect", "furnish", "host", "hire", "dismiss", "park", "unpark", "stop",
                "collect", "close", "lead_with", "follow", "fill", "flush"),
    "tick": ("tick",),
    "up": ("take", "welcome", "part_with"),
    "down": ("publish",),
    "requests": ("deliver", "meet"),
}  # fmt: skip


def actor_class() -> Any:
    """The Ray actor: each method in the group of its kind."""
    import ray

    remote: Any = ray.remote
    for group, methods in KINDS.items():
        for name in methods:
            ray.method(concurrency_group=group)(getattr(NodeRunner, name))
    how = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    # Ray's server would keep a record of every call, of which there are many.
    return remote(**how, enable_task_events=False, concurrency_groups=GROUPS)(NodeRunner)
