"""Which process on which node: a pure function of what a run needs and of the nodes.

Processes that share memory are on main's node, with the replay and the hosted objects. Processes
that may be anywhere fill main's node first, because their rows then need no network. The rest is
dealt to the other nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyhands.backends.ray.nodes import Node, table
from manyhands.types import BadRequest
from manyhands.types.needs import Needs, ProcessNeed
from manyhands.types.sizes import human

MESSAGES_IN_STORE = 4  # of the longest kind, that a node's object store must hold at once
NEARLY = 1e-6  # CPUs are fractions


class NotEnough(BadRequest):
    """The nodes have too little now. It may change."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the processes of a run are."""

    needs: Needs
    cpus_each: float
    nodes: tuple[Node, ...]  # those in use, main's first
    ranks: tuple[str, ...]  # by rank: the id of its node

    @property
    def core(self) -> Node:
        return self.nodes[0]

    @property
    def hosted(self) -> int:
        return _total(self.needs.hosted)

    def ranks_on(self, node: Node) -> tuple[int, ...]:
        return tuple(rank for rank, id in enumerate(self.ranks) if id == node.id)

    def resources_on(self, node: Node) -> dict[str, float]:
        """What to reserve there: CPUs, and on main's node the memory."""
        hosted = self.hosted if node == self.core else 0
        cpus = self.cpus_each * (len(self.ranks_on(node)) + hosted)
        found = {"CPU": round(cpus, 4)}
        if memory_bytes := self.memory_on(node):
            found["memory"] = float(memory_bytes)
        return found

    def memory_on(self, node: Node) -> int:
        if node == self.core:
            return self.needs.memory_bytes
        each = [need.memory_bytes for need in self.needs.processes for _ in range(need.count)]
        return sum(each[rank] for rank in self.ranks_on(node))

    def __str__(self) -> str:
        """node A: 1 learner, 2 shards, 6.8 GB; node B: 8 actors"""
        return "; ".join(f"node {node.name}: {self._words(node)}" for node in self.nodes)

    def _words(self, node: Node) -> str:
        roles = [need.role for need in self.needs.processes for _ in range(need.count)]
        here = [roles[rank] for rank in self.ranks_on(node)]
        found = [counted(here.count(role), role) for role in sorted(set(here), reverse=True)]
        if node == self.core:
            found += [counted(need.count, need.role) for need in self.needs.hosted if need.count]
        found += [human(self.memory_on(node))] if self.memory_on(node) else []
        return ", ".join(found)


def counted(count: int, role: str) -> str:
    return f"{count} {role}" if count == 1 else f"{count} {role}s"


def place(needs: Needs, nodes: Sequence[Node], *, cpus_each: float) -> Places:
    """Raises NotEnough, with all nodes, if CPUs, memory or an object store are too small."""
    core = _core(needs, nodes, cpus_each)
    together = cpus_each * _together(needs)
    free = {core.id: core.free_cpus - together}
    free |= {node.id: node.free_cpus for node in nodes if node.id != core.id}
    moving = sum(need.count for need in needs.processes if need.anywhere)
    dealt = deal(moving, free, cpus_each=cpus_each)
    if sum(dealt.values()) < moving:
        raise _too_few_cpus(needs, nodes, cpus_each)
    ranks = _ranks(needs, core, dealt)
    used = tuple(node for node in nodes if node.id in ranks and node.id != core.id)
    places = Places(needs, cpus_each, (core, *used), ranks)
    _check_memory(places, nodes)
    _check_stores(places)
    return places


def deal(count: int, free_cpus: Mapping[str, float], *, cpus_each: float) -> dict[str, int]:
    """How many processes each node gets. The first node is filled first.

    The others get one after the other, always the node with the most free CPUs. The sum is less
    than `count` if the nodes are full.
    """
    room = {id: max(0, int((free + NEARLY) / cpus_each)) for id, free in free_cpus.items()}
    first = next(iter(room), "")
    found = dict.fromkeys(room, 0)
    for _ in range(min(count, sum(room.values()))):
        id = first if room[first] else max(room, key=room.__getitem__)
        room[id] -= 1
        found[id] += 1
    return found


def _ranks(needs: Needs, core: Node, dealt: Mapping[str, int]) -> tuple[str, ...]:
    """Ranks that follow each other are on one node where possible."""
    places = iter([id for id, count in dealt.items() for _ in range(count)])
    return tuple(
        next(places) if need.anywhere else core.id
        for need in needs.processes
        for _ in range(need.count)
    )


def _core(needs: Needs, nodes: Sequence[Node], cpus_each: float) -> Node:
    core = next(node for node in nodes if node.is_main)
    cpus = cpus_each * _together(needs)
    if not core.cpus:
        raise BadRequest(
            f"{_names_together(needs)} must be on this machine, where the cluster may use no CPU. "
            f"{table(nodes)}",
            "run the command on a node with CPUs (ray job submit --entrypoint-num-cpus 1), or "
            "start this node with --num-cpus",
        )
    if core.free_cpus + NEARLY < cpus:
        raise NotEnough(
            f"{_names_together(needs)} must be on this machine, since {needs.together}: that "
            f"takes {cpus:g} free CPUs. {table(nodes)}",
            "use fewer of them, or a recipe whose actors or workers may be on other nodes; run the "
            "command on a larger node; or add --ray.wait-minutes to wait for CPUs",
        )
    if core.free_bytes < needs.memory_bytes:
        raise NotEnough(
            f"{human(needs.memory_bytes)} of memory are needed on this machine. {table(nodes)}",
            "lower --memory.capacity, run the command on a larger node, or add --ray.wait-minutes",
        )
    return core


def _names_together(needs: Needs) -> str:
    staying = (need for need in needs.processes if not need.anywhere)
    return " and ".join(counted(n.count, n.role) for n in (*staying, *needs.hosted) if n.count)


def _together(needs: Needs) -> int:
    """How many processes must be on main's node."""
    staying = sum(need.count for need in needs.processes if not need.anywhere)
    return staying + _total(needs.hosted)


def _total(needs: Sequence[ProcessNeed]) -> int:
    return sum(need.count for need in needs)


def _too_few_cpus(needs: Needs, nodes: Sequence[Node], cpus_each: float) -> NotEnough:
    processes = _total(needs.processes) + _total(needs.hosted)
    return NotEnough(
        f"{processes} processes need {processes * cpus_each:g} CPUs, which are not free. "
        f"{table(nodes)}",
        "use fewer processes, lower --ray.cpus-per-worker, or add --ray.wait-minutes to wait "
        "for CPUs",
    )


def _check_memory(places: Places, nodes: Sequence[Node]) -> None:
    """On other nodes than main's, which was checked before."""
    for node in places.nodes[1:]:
        if node.free_bytes < places.memory_on(node):
            raise NotEnough(
                f"{human(places.memory_on(node))} of memory are needed on node {node.name}. "
                f"{table(nodes)}",
                "lower --memory.capacity, use fewer workers, or add --ray.wait-minutes",
            )


def _check_stores(places: Places) -> None:
    """With one node nothing is sent, so the object store is not used."""
    least = MESSAGES_IN_STORE * places.needs.message_bytes
    if len(places.nodes) == 1:
        return
    for node in places.nodes:
        if node.store_bytes < least:
            raise BadRequest(
                f"the object store of node {node.name} holds {human(node.store_bytes)}; "
                f"{MESSAGES_IN_STORE} messages of {human(places.needs.message_bytes)} need more",
                f"start that node with `ray start --object-store-memory {least}` or more",
            )
