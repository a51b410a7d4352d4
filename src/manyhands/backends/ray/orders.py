"""What main sends to node runners: processes to start, and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from manyhands.backends.processes import control, outbox, packing, segment, work
from manyhands.backends.processes.control import MAIN
from manyhands.backends.ray.node_runner import RELAY, Handed, Order
from manyhands.backends.ray.parcels import Known, pack_for_another_node
from manyhands.backends.ray.passing import Kept, Serials
from manyhands.backends.ray.places import MOST_RUNNERS, Place
from manyhands.types import Array, Job


class Orders:
    """Packs for main's node, or for another one. Holds what was packed as long as it is needed."""

    def __init__(self) -> None:
        self.table = control.new_table()
        self.batches_seen = segment.allocate((MOST_RUNNERS,), np.dtype(np.int64))
        self._known, self._serials = Known(self.table), Serials()
        self.places: list[Place] = []
        self.outboxes: dict[int, outbox.Outbox] = {}  # by rank
        self.kept: dict[int, Kept] = {}  # by serial number: what node runners refer to

    def add_place(self, place: Place) -> None:
        self.places.append(place)
        self._known.add_place(place)

    def add_memory(self, whole: segment.Segment) -> None:
        """Of which each node has its own, zeros at first."""
        self._known.add_segment(whole)

    # --- Processes --------------------------------------------------------------------------------

    def host(
        self, client: int, role: str, index: int, threads: int,
        serve: Callable[..., None], given: tuple[Any, ...], incarnation: int,
    ) -> Order:  # fmt: skip
        content = (self.table, client, serve, given)
        parcel = packing.pack(content, client=client, name=f"{role} {index}")
        return Order(role, index, incarnation, client, threads, self._handed(parcel))

    def worker(
        self, client: int, rank: int, job: Job, incarnation: int, *, away: bool
    ) -> tuple[Order, dict[int, Place]]:
        """The order, and the places that it uses if it is for another node."""
        box = self.outboxes[rank] = outbox.make()
        given = (job.work, rank, job.role, job.nice, box)
        content, name = (self.table, client, work.drive, given), f"{job.role} {rank}"
        used: dict[int, Place] = {}
        if away:
            parcel, used = pack_for_another_node(
                content, client=client, name=name, known=self._known
            )
        else:
            parcel = packing.pack(content, client=client, name=name)
        serial, handed = self._serials.of(box), self._handed(parcel)
        made = Order(job.role, rank, incarnation, client, job.threads, handed, serial)
        return made, used

    # --- Memory -----------------------------------------------------------------------------------

    def furniture(
        self, places: Mapping[int, Place], *, away: bool
    ) -> tuple[Handed, Handed, dict[int, list[Array]]]:
        """The control table, places, and what they hold: on main's node it is there already."""
        listed = list(places.values())
        if not away:
            return self._packed(self.table, MAIN), self._packed(listed, RELAY), {}
        table, _ = pack_for_another_node(self.table, client=MAIN, name="table", known=self._known)
        packed, _ = pack_for_another_node(listed, client=MAIN, name="places", known=self._known)
        given = {number: place.given() for number, place in places.items()}
        return self._handed(table), self._handed(packed), given

    def seen(self) -> Handed:
        return self._packed(self.batches_seen, MAIN)

    def _packed(self, thing: Any, client: int) -> Handed:
        return self._handed(packing.pack(thing, client=client, name="memory"))

    def _handed(self, parcel: packing.Parcel) -> Handed:
        kept = {each.descriptor: each for each in parcel.kept}
        self.kept |= {self._serials.of(each): each for each in kept.values()}
        listed = tuple(
            (number, self._serials.of(each), _bytes(each)) for number, each in kept.items()
        )
        return Handed(parcel.body, listed, parcel.here, parcel.path, parcel.files)


def _bytes(kept: Kept) -> int:
    return len(kept) if isinstance(kept, segment.Segment) else 0
