"""Reserves CPUs and memory on the nodes, so that no other user of the cluster takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from manyhands.backends.ray import calling_ray, comparing
from manyhands.backends.ray.nodes import LABEL, Node, table
from manyhands.backends.ray.options import RayOptions
from manyhands.backends.ray.placing import NotEnough, Places, place
from manyhands.types.needs import Needs

if TYPE_CHECKING:
    from manyhands.backends.ray.joining import Cluster

PATIENCE_S = 10.0  # Ray waits for ever for what a node does not have
LOOK_S = 2.0
COVER_S = 1.0  # for processes that a lost node had

Look = Callable[[], Sequence[Node]]
Tell = Callable[[str], None]


class Reservation:
    """CPUs and memory that Ray keeps for this run on each node. They need not be used from Ray."""

    def __init__(self, places: Places, group: Any) -> None:
        self.places, self._groups = places, [group]
        self._cpus = {node.id: places.resources_on(node)["CPU"] for node in places.nodes}

    def room(self, node: Node, taken: float) -> float:
        """CPUs for further processes of this run: those reserved and those free, without these."""
        return node.free_cpus + self._cpus.get(node.id, 0.0) - taken

    def cover(self, node: Node, taken: float) -> None:
        """Reserves what processes of this run take more. If it fails, they run all the same."""
        more = round(taken - self._cpus.get(node.id, 0.0), 4)
        if more <= 0:
            return
        group = _group([{"CPU": more}], [node])
        if _is_ready(group, COVER_S):
            self._groups.append(group)
            self._cpus[node.id] = taken
        else:
            _remove(group)

    def release(self) -> None:
        while self._groups:
            _remove(self._groups.pop())


def prepare(cluster: Cluster, options: RayOptions, needs: Needs, tell: Tell) -> Reservation:
    """Compares the nodes, places the processes, reserves their nodes, and says where they are."""

    def look() -> tuple[Node, ...]:
        if cluster.is_own:  # the same machine and the same Python
            return cluster.nodes
        return comparing.compare(cluster.nodes, needs.libraries, needs.trial)

    for note in cluster.notes:
        tell(note)
    cpus_each, wait_minutes = cluster.cpus_each(options), options.wait_minutes
    made = reserve(needs, look, cpus_each=cpus_each, wait_minutes=wait_minutes, tell=tell)
    tell(str(made.places))
    return made


def reserve(
    needs: Needs, look: Look, *, cpus_each: float, wait_minutes: float, tell: Tell
) -> Reservation:
    """Places the processes and reserves their nodes; waits for what is missing if told to."""
    deadline, waiting = time.monotonic() + 60 * wait_minutes, False
    while True:
        try:
            return _reserved(place(needs, look(), cpus_each=cpus_each), look)
        except NotEnough as refusal:
            if time.monotonic() >= deadline:
                raise
            if not waiting:
                tell(f"waiting up to {wait_minutes:g} minutes: {refusal.what}")
                _ask_autoscaler(needs, cpus_each)
            waiting = True
            time.sleep(LOOK_S)


def _reserved(places: Places, look: Look) -> Reservation:
    group = _group([places.resources_on(node) for node in places.nodes], places.nodes)
    if _is_ready(group, PATIENCE_S):
        return Reservation(places, group)
    _remove(group)
    raise NotEnough(
        f"the nodes were taken before they could be reserved. {table(look())}",
        "try again, or add --ray.wait-minutes to wait for CPUs",
    )


def _group(bundles: list[dict[str, float]], nodes: Sequence[Node]) -> Any:
    """One bundle for each node."""
    from ray.util.placement_group import placement_group

    return placement_group(bundles, bundle_label_selector=[{LABEL: node.id} for node in nodes])


def _is_ready(group: Any, timeout_s: float) -> bool:
    try:
        return bool(group.wait(timeout_s))
    except BaseException:
        _remove(group)
        raise


def _remove(group: Any) -> None:
    from ray.util.placement_group import remove_placement_group

    with suppress(Exception):  # the cluster may be gone
        remove_placement_group(group)


def _ask_autoscaler(needs: Needs, cpus_each: float) -> None:
    """A cluster that grows adds nodes for what is asked for. Others ignore it."""
    calling_ray.ray_module()
    from ray.autoscaler import sdk

    count = sum(need.count for need in (*needs.processes, *needs.hosted))
    with suppress(Exception):  # without an autoscaler
        sdk.request_resources(bundles=[{"CPU": cpus_each}] * count)
