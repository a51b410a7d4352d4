"""The nodes of a cluster as plain data. Nothing here needs Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.types.sizes import human

LABEL = "ray.io/node-id"  # that Ray gives every node
ID_CHARACTERS = 6  # of a node's id, where two nodes have one address


@dataclass(frozen=True, slots=True)
class Node:
    id: str  # Ray's
    name: str  # its address; with a part of its id if other nodes have the same address
    cpus: float
    free_cpus: float
    memory_bytes: int
    free_bytes: int  # of memory, as Ray counts until the node was asked
    store_bytes: int  # of its object store
    is_main: bool = False  # main runs on it


def from_ray(
    found: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]], main: str
) -> tuple[Node, ...]:
    """Nodes that are alive, main's first, then those with the most CPUs.

    `found`: as `ray.nodes` returns them. `free`: what is not in use, by node. `main`: a node's id.
    """
    alive = [node for node in found if node["Alive"]]
    times = Counter(node["NodeManagerAddress"] for node in alive)
    made = (_node(node, free.get(node["NodeID"], {}), main, times) for node in alive)
    return tuple(sorted(made, key=lambda node: (not node.is_main, -node.cpus, node.name)))


def _node(
    node: Mapping[str, Any], free: Mapping[str, float], main: str, times: Mapping[str, int]
) -> Node:
    address, id, all = node["NodeManagerAddress"], node["NodeID"], node["Resources"]
    name = address if times[address] == 1 else f"{address} ({id[:ID_CHARACTERS]})"
    return Node(
        id=id,
        name=name,
        cpus=all.get("CPU", 0.0),
        free_cpus=free.get("CPU", 0.0),
        memory_bytes=int(all.get("memory", 0)),
        free_bytes=int(free.get("memory", 0)),
        store_bytes=int(all.get("object_store_memory", 0)),
        is_main=id == main,
    )


def table(nodes: Sequence[Node]) -> str:
    """All nodes in one line: errors have one line, and a cluster of hundreds is cut."""
    shown = [_words(node) for node in nodes[:SHOWN]]
    more = f"; {len(nodes) - SHOWN} more nodes" if len(nodes) > SHOWN else ""
    return "; ".join(shown) + more


SHOWN = 8  # nodes of a table


def _words(node: Node) -> str:
    here = " (this machine)" if node.is_main else ""
    return (
        f"node {node.name}{here}: {node.free_cpus:g} of {node.cpus:g} CPUs, "
        f"{human(node.free_bytes)} of memory free"
    )
