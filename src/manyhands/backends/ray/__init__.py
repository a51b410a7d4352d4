"""ray: the processes of a run on one or many nodes of a Ray cluster."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from manyhands import types
from manyhands.backends.processes import group, hosted, lock, queued, segment, shared
from manyhands.backends.processes.channel import LINES_BYTES, ring_bytes
from manyhands.backends.processes.channel import reserve as reserve_ring
from manyhands.backends.processes.control import LOOK_S, MAIN, MOST_CLIENTS
from manyhands.backends.processes.mailbox import Mailbox
from manyhands.backends.ray.boxes import NO_PROXY, Box, Rounds
from manyhands.backends.ray.options import RayOptions
from manyhands.backends.ray.places import INT, Budget, Live, Notice, Own, Records, Stream, Table
from manyhands.types import Array, Failure, Fault, Job, ProcessInfo, State

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.backends.ray.joining import Cluster
    from manyhands.types.needs import Needs

P = TypeVar("P", Table, Budget, Notice, Live, Box, Rounds, Own, Stream, Records)
MOST_PROCESSES = None  # each node runs as many as the backend processes does
CPU_ONLY = True  # workers share parameters in main memory


class Ray:
    """Main's memory is that of main's node. Its node runner starts processes over it."""

    def __init__(
        self,
        seed: int = 0,  # noqa: ARG002
        *,
        hang_s: float = 120.0,
        imports: Sequence[str] = (),
        options: RayOptions | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """`seed` has no effect: the kernel schedules processes.

        `imports`: modules that all processes of a node share.
        `cluster`: one that was joined before, and stays joined.
        """
        from manyhands.backends.ray.runners import Runners

        self._runners = Runners(hang_s=hang_s, imports=imports, options=options, cluster=cluster)
        self._closed = False
        weakref.finalize(self, self._runners.close)

    def reserve(self, needs: Needs, tell: Callable[[str], None]) -> None:
        self._runners.reserve(needs, tell)

    # --- What processes share ---------------------------------------------------------------------

    def share(self, tensor: Tensor, *, elsewhere: int | None = None) -> Tensor:
        made = segment.share(tensor)
        if elsewhere is not None and made.numel():  # an empty one is no memory
            self._add(lambda place: Own(place, made.numpy(), elsewhere))
        return made

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype, *, elsewhere: int | None = None
    ) -> Array:
        made = segment.allocate(shape, dtype)
        if elsewhere is not None:
            self._add(lambda place: Own(place, made, elsewhere))
        return made

    def table(self, rows: int, fields: int, dtype: np.dtype) -> Table:
        return self._add(lambda place: Table(place, segment.allocate((rows, fields), dtype)))

    def budget(self, table: types.Table, field: int, most: float) -> Budget:
        assert isinstance(table, Table)
        return self._add(lambda place: Budget(place, table, field, most))

    def notice(self, *arrays: Array) -> Notice:
        return self._add(lambda place: Notice(place, arrays))

    def live(
        self, vector: Array, counts: types.Table | None = None, row: int = 0
    ) -> shared.SharedVector | Live:
        """Its writer is on main's node. Without `counts` its readers are, too."""
        if counts is None:
            return shared.SharedVector(vector)
        assert isinstance(counts, Table)
        return self._add(lambda place: Live(place, vector, counts, row))

    def stream(
        self, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], *, writers: int, fields: int,
        kept: bool = False,
    ) -> Stream:  # fmt: skip
        heads = Table(-1, segment.allocate((writers, fields), INT))
        tails = self.table(writers, fields, INT)
        return self._add(lambda place: Stream(place, kinds, heads, tails, kept=kept))

    def look(self) -> None:
        self._runners.flush()

    def channel(self, capacity: int) -> Records:
        memory = segment.sparse(LINES_BYTES + MOST_CLIENTS * ring_bytes(capacity))
        memory.reserve(0, LINES_BYTES)
        reserve_ring(memory, capacity, MAIN)
        return self._add(lambda place: Records(memory, capacity, MAIN, place))

    def _add(self, make: Callable[[int], P]) -> P:
        orders = self._runners.there.orders
        made = make(len(orders.places))
        orders.add_place(made)
        return made

    def pause(self) -> Callable[[], None]:
        return _nothing

    def lock(self, *, elsewhere: bool = False) -> lock.Lock:
        made = lock.Lock(look=self._looker())
        if elsewhere:
            self._runners.there.orders.add_memory(made.memory)
        return made

    def group(
        self, n: int, numbers: int = 65_536, *, rows: Tensor | None = None,
        stamps: Array | None = None,
    ) -> group.Group:  # fmt: skip
        table = self._runners.there.orders.table
        made = group.make(table, n, numbers)
        if rows is not None and stamps is not None:
            own, newest = rows.numpy(), stamps
            mailbox = Mailbox(None, max(numbers, own.shape[1]), depth=1)
            proxies = segment.allocate((n,), INT)
            proxies[:] = NO_PROXY
            self._add(lambda place: Rounds(place, mailbox, made, own, newest, proxies, table))
        return made

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots",
        near: int | None = None,  # noqa: ARG002
    ) -> hosted.Handle | queued.Handle:  # fmt: skip
        """On main's node. Processes of other nodes reach it if it has slots."""
        from manyhands.backends.ray.starting import Hosted

        module: Any = {"slots": hosted, "queue": queued}[transport]
        label = f"{name} {len(self._runners.there.hosts)}"
        box, handle = module.make(label, numbers=numbers, depth=depth, look=self._looker())
        self._runners.host(Hosted(name, threads, module.serve, (factory, box)))
        if transport == "slots":
            self._add(lambda place: Box(place, box))
        result: hosted.Handle | queued.Handle = handle
        return result

    # --- Workers ----------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> Generator[Fault | None]:
        runners = self._runners
        if runners.jobs:
            raise RuntimeError("this backend runs workers already")
        try:
            runners.hire(jobs)
            while not runners.finished:
                runners.watch(LOOK_S)
                while runners.faults:  # one by one: `attend` may take the rest
                    yield runners.faults.pop(0)
                if runners.failure is not None:
                    raise runners.failure
                yield None
        finally:
            runners.dismiss()

    def park(self, timeout_s: float) -> frozenset[int]:
        return self._runners.park(timeout_s)

    def collect(self, timeout_s: float) -> dict[int, State]:
        return self._runners.collect(timeout_s)

    def unpark(self) -> None:
        self._runners.tell("unpark")

    def stop(self) -> None:
        self._runners.tell("stop")

    def attend(self) -> list[Fault]:
        if not self._closed:
            self._runners.watch(0.0)
        faults = self._runners.take_faults()
        if not (faults or self._closed) and self._runners.failure is not None:
            raise self._runners.failure
        return faults

    def process_table(self) -> list[ProcessInfo]:
        return self._runners.process_table()

    def has_other_nodes(self) -> bool:
        return len(self._runners.cluster.nodes) > 1

    def nodes_used(self) -> list[str]:
        return list(self._runners.there.nodes_used)

    def close(self) -> None:
        self._closed = True
        self._runners.close()

    def _looker(self) -> Callable[[], None]:
        """What main calls while it waits for a process. Holds only a weak reference."""
        method = weakref.WeakMethod(self._look)

        def look() -> None:
            found = method()
            if found is not None:
                found()

        return look

    def _look(self) -> None:
        if self._closed:
            raise Failure("this backend is closed: no process is left to answer")
        self._runners.watch(0.0)
        if self._runners.failure is not None:
            raise self._runners.failure


def _nothing() -> None:
    """Processes interleave without help."""


Config = RayOptions
make = Ray
