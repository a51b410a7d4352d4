"""Starts node runners, and processes by them; gives them memory and connects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from manyhands.backends.processes import control, free_client
from manyhands.backends.processes.supervisor import Patience
from manyhands.backends.ray import carrying, pieces
from manyhands.backends.ray.boxes import Rounds
from manyhands.backends.ray.node_runner import RELAY, Order
from manyhands.backends.ray.nodes import Node
from manyhands.backends.ray.orders import Orders
from manyhands.backends.ray.passing import Sender
from manyhands.backends.ray.places import Budget, Place, Stream
from manyhands.backends.ray.rounds import MOST_AWAY
from manyhands.backends.ray.runner import CALL_S, Lost, Runner
from manyhands.types import BadRequest, Job

EACH_S = 5.0  # more for each process that is started: a hundred may share two cores
STARTING_S = 30.0  # for a node runner on a node that may be gone


class Hosted(NamedTuple):
    """What is needed to start a hosted object again."""

    name: str
    threads: int
    serve: Callable[..., None]
    given: tuple[Any, ...]


class Hire(NamedTuple):
    rank: int
    job: Job
    incarnation: int


class Starting:
    """The node runners that are there, `core` on main's node, and their memory."""

    def __init__(self, main: Node, patience: Patience, imports: Sequence[str]) -> None:
        self.orders, self.hosts = Orders(), list[Hosted]()
        self.away: list[Runner] = []
        self.nodes_used: dict[str, None] = {}  # in order, also those that are lost by now
        self._main, self._patience, self._imports, self._count = main, patience, imports, 0
        self._carried: dict[int, Place] = {}  # what other nodes have copies of
        self._relays: dict[int, int] = {}  # by node runner: its client number on main's node
        self._start_core()

    @property
    def all(self) -> list[Runner]:
        return [self.core, *self.away]

    def _start(self, node: Node) -> Runner:
        self._count += 1
        return Runner(node, self._count, patience=self._patience, imports=self._imports)

    def _start_core(self) -> None:
        """It gets main's memory."""
        self.core, self.sender = self._start(self._main), Sender()
        self.sender.accept(self.core.call("connect", self.sender.name))
        self._to_core("furnish", *self.orders.furniture({}, away=False))

    def _to_core(self, method: str, *given: Any, timeout_s: float = CALL_S) -> Any:
        """A call with memory: descriptors go another way, at the same time."""
        call = self.core.begin(method, *given)
        self.sender.send(self.orders.kept)
        return call.result(timeout_s)

    def on(self, node: Node) -> Runner:
        """The node runner of this node; starts one if there is none."""
        for each in self.all:
            if each.node.id == node.id:
                return each
        made = self._start(node)
        made.call("pid", timeout_s=STARTING_S)
        self.away.append(made)
        return made

    # --- Processes --------------------------------------------------------------------------------

    def host(self, one: Hosted) -> None:
        self.hosts.append(one)
        self._host(len(self.hosts) - 1, 0)

    def _host(self, index: int, incarnation: int) -> None:
        one, core = self.hosts[index], self.core
        client = core.hosts[index] = free_client(self._taken(core))
        order = self.orders.host(
            client, one.name, index, one.threads, one.serve, one.given, incarnation
        )
        core.take(self._to_core("host", [order], core.news.faults_so_far))
        self.nodes_used[core.node.name] = None

    def hire(self, where: Runner, hires: list[Hire]) -> None:
        orders: list[Order] = []
        used: dict[int, Place] = {}
        away = where is not self.core
        for rank, job, incarnation in hires:
            client = where.ranks[rank] = free_client(self._taken(where))
            if away:
                self._proxy(rank)
            order, places = self.orders.worker(client, rank, job, incarnation, away=away)
            orders.append(order)
            used |= places
        given = orders, where.news.faults_so_far
        timeout_s = CALL_S + EACH_S * len(orders)  # silence tells of a dead node much sooner
        if away:
            self._furnish(where, used)
            self._fill(where, used, [rank for rank, _, _ in hires])
            answer = where.call("hire", *given, timeout_s=timeout_s)
        else:
            answer = self._to_core("hire", *given, timeout_s=timeout_s)
        where.take(answer)
        self.nodes_used[where.node.name] = None

    def _taken(self, where: Runner) -> set[int]:
        """Client numbers that a new process of this node must not get."""
        proxies = {client for rounds in self._rounds for client in rounds.clients}
        return {*where.clients, *self._relays.values(), *proxies, RELAY}

    # --- Groups -----------------------------------------------------------------------------------

    @property
    def _rounds(self) -> list[Rounds]:
        return [place for place in self.orders.places if isinstance(place, Rounds)]

    @property
    def has_proxies(self) -> bool:
        """Whether members of groups are on other nodes."""
        return any(rounds.clients for rounds in self._rounds)

    def _proxy(self, rank: int) -> None:
        for rounds in self._rounds:
            if len(rounds.clients) >= MOST_AWAY:
                raise BadRequest(
                    f"more than {MOST_AWAY} learners in step on other nodes",
                    "use fewer workers, or --strategy parameter_server",
                )
            rounds.proxy(rank, lambda: free_client(self._taken(self.core)))

    def note_life(self, rank: int, ended: int) -> None:
        """How many incarnations of a process of another node have ended, for groups."""
        for rounds in self._rounds:
            rounds.note_life(rank, ended)

    # --- Other nodes ------------------------------------------------------------------------------

    def _furnish(self, away: Runner, used: Mapping[int, Place]) -> None:
        """Gives another node its copies, and connects it with main's node."""
        self._carried |= used
        self._lead()
        away.call("furnish", *self.orders.furniture(used, away=True))
        self._connect(away)  # after it: what is published goes to places that are there
        away.call("follow", away.number, self.core.handle)

    def _fill(self, away: Runner, used: Mapping[int, Place], ranks: Sequence[int]) -> None:
        """Gives these ranks what they had written to streams that they read."""
        for place in used.values():
            if isinstance(place, Stream) and place.kept:
                for ranges in carrying.ranges_of(place, ranks):
                    content = pieces.cut(list(carrying.parts(place, ranges)))
                    away.call("fill", place.place, ranges, *content)

    def _lead(self) -> None:
        """Main's node runner knows what is carried, and takes it."""
        self._to_core("furnish", *self.orders.furniture(self._carried, away=False))
        self._to_core("lead_with", self.orders.seen())

    def _connect(self, away: Runner) -> None:
        if away.number not in self._relays:
            self._relays[away.number] = free_client(self._taken(self.core))
        client = self._relays[away.number]
        self.core.call("welcome", away.number, away.handle, list(self._carried), client)

    def part_with(self, lost: Runner) -> None:
        """Nothing that it still sends is taken."""
        self.away.remove(lost)
        self._relays.pop(lost.number, None)
        with suppress(Lost):  # a new node runner of main's node does not know it
            self.core.call("part_with", lost.number)
        for place in self.orders.places:
            if isinstance(place, Budget):
                place.end_lease(lost.number)

    def replace_core(self) -> None:
        """Main's memory outlives its node runner. Hosted objects are started again."""
        lost = self.core
        for client in lost.clients:
            self.orders.table[client, control.ENDS] += 1  # for members of their groups
        self.sender.close()
        self._start_core()
        for index, one in enumerate(self.hosts):
            self._host(index, 1 + lost.incarnation_of(one.name, index))
        if self.away:
            self._lead()
        for each in self.away:
            self._connect(each)
            each.call("follow", each.number, self.core.handle)
