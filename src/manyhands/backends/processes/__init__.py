"""processes: each worker in its own interpreter, over shared memory; restarted if it dies."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.backends.processes import (
    channel,
    control,
    group,
    hosted,
    launched,
    lock,
    outbox,
    packing,
    queued,
    running,
    segment,
    shared,
    spawn,
    work,
)
from manyhands.backends.processes.control import LOOK_S, MAIN, MOST_CLIENTS
from manyhands.backends.processes.supervisor import Patience, SupervisedProcess
from manyhands.types import Array, BadRequest, Failure, Fault, Job, ProcessInfo, State, Table

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.types.needs import Needs

MOST_PROCESSES = MOST_CLIENTS - 1  # main is one of the clients
CPU_ONLY = True  # workers share parameters in main memory
Target = Callable[..., None]  # what a process runs: control row, incarnation, more


class Processes:
    """Hosted objects run from `host` to `close`, workers while `run` does."""

    def __init__(
        self,
        seed: int = 0,  # noqa: ARG002
        *,
        hang_s: float = 120.0,
        patience: Patience | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        """`seed` has no effect: the kernel schedules processes.

        `imports`: modules that all processes share. They are imported once, beginning now.
        """
        spawn.prepare()
        self._table = control.new_table()
        patience = patience or patience_for(hang_s)
        self._launched = launched.Launched(self._table, patience, imports)
        self._launched.begin()
        self._supervisor = self._launched.supervisor
        self._attend_at_s, self._closed = 0.0, False
        weakref.finalize(self, self._launched.close)

    # --- What processes share ---------------------------------------------------------------------

    def reserve(self, needs: Needs, tell: Callable[[str], None]) -> None:
        """Nothing: a machine may run more processes than it has cores."""

    def share(self, tensor: Tensor, *, elsewhere: int | None = None) -> Tensor:  # noqa: ARG002
        return segment.share(tensor)

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype, *, elsewhere: int | None = None  # noqa: ARG002
    ) -> Array:  # fmt: skip
        return segment.allocate(shape, dtype)

    def table(self, rows: int, fields: int, dtype: np.dtype) -> shared.SharedTable:
        return shared.new_table(rows, fields, dtype)

    def budget(self, table: Table, field: int, most: float) -> shared.SharedBudget:
        return shared.SharedBudget(table, field, most)

    def notice(self, *arrays: Array) -> shared.DoubleBuffer:
        return shared.DoubleBuffer(arrays)

    def live(
        self, vector: Array, counts: Table | None = None, row: int = 0  # noqa: ARG002
    ) -> shared.SharedVector:  # fmt: skip
        return shared.SharedVector(vector)

    def stream(
        self, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], *, writers: int, fields: int,
        kept: bool = False,  # noqa: ARG002
    ) -> shared.SharedStream:  # fmt: skip
        return shared.SharedStream(kinds, writers, fields)

    def look(self) -> None:
        """Nothing is late in memory that all processes see."""

    def channel(self, capacity: int) -> channel.Channel:
        return channel.make(capacity)

    def pause(self) -> Callable[[], None]:
        return _nothing

    def lock(self, *, elsewhere: bool = False) -> lock.Lock:  # noqa: ARG002
        return lock.Lock(look=self._looker())

    def group(
        self, n: int, numbers: int = 65_536, *, rows: Tensor | None = None,  # noqa: ARG002
        stamps: Array | None = None,  # noqa: ARG002
    ) -> group.Group:  # fmt: skip
        return group.make(self._table, n, numbers)

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots",
        near: int | None = None,  # noqa: ARG002
    ) -> hosted.Handle | queued.Handle:  # fmt: skip
        """`near` has no effect: there is one node."""
        module: Any = {"slots": hosted, "queue": queued}[transport]
        index = len(self._launched.hosts)
        label = f"{name} {index}"
        box, handle = module.make(label, numbers=numbers, depth=depth, look=self._looker())
        self._launched.host(self._new_process(name, index, threads, module.serve, (factory, box)))
        result: hosted.Handle | queued.Handle = handle
        return result

    # --- Workers ----------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> Generator[Fault | None]:
        launched, supervisor = self._launched, self._supervisor
        if launched.workers:
            raise RuntimeError("this backend runs workers already")
        try:
            outboxes = {i: _new_outbox(f"{job.role} {i}") for i, job in enumerate(jobs)}
            launched.start(self._new_workers(jobs, outboxes), outboxes)
            while not launched.finished:
                supervisor.look(LOOK_S)
                while supervisor.faults:  # one by one: `attend` may take the rest
                    yield supervisor.faults.pop(0)
                if supervisor.hopeless is not None:
                    raise supervisor.hopeless
                yield None
        finally:
            launched.dismiss()

    def _new_workers(
        self, jobs: Sequence[Job], outboxes: Mapping[int, outbox.Outbox]
    ) -> list[SupervisedProcess]:
        made: list[SupervisedProcess] = []
        for index, job in enumerate(jobs):
            given = (job.work, index, job.role, job.nice, outboxes[index])
            taken = {process.client for process in made}
            made.append(
                self._new_process(job.role, index, job.threads, work.drive, given, taken=taken)
            )
        return made

    def _new_process(
        self,
        role: str,
        index: int,
        threads: int,
        target: Target,
        given: tuple[Any, ...],
        *,
        taken: Set[int] = frozenset(),
    ) -> SupervisedProcess:
        """`taken`: client numbers of processes that were made but not launched yet."""
        free = free_client({process.client for process in self._launched.hosts} | taken)
        content = (self._table, free, target, given)
        parcel = packing.pack(content, client=free, name=f"{role} {index}")
        return SupervisedProcess(free, role, index, parcel, threads)

    def park(self, timeout_s: float) -> frozenset[int]:
        return self._launched.park(timeout_s)

    def collect(self, timeout_s: float) -> dict[int, State]:
        """States are pickled in nameless memory, which a killed worker leaves empty."""
        self._launched.save(timeout_s)
        states = ((index, box.get()) for index, box in self._launched.outboxes.items())
        return {index: state for index, state in states if state is not None}

    def unpark(self) -> None:
        self._launched.tell(control.GO)

    def stop(self) -> None:
        self._launched.tell(control.STOP)

    def attend(self) -> list[Fault]:
        if not self._closed and time.monotonic() >= self._attend_at_s:
            self._attend_at_s = time.monotonic() + LOOK_S
            self._supervisor.look(0.0)
        faults = self._launched.take_faults()
        if not (faults or self._closed) and self._supervisor.hopeless is not None:
            raise self._supervisor.hopeless
        return faults

    def process_table(self) -> list[ProcessInfo]:
        return self._launched.process_table()

    def has_other_nodes(self) -> bool:
        return False

    def nodes_used(self) -> list[str]:
        return []

    def close(self) -> None:
        self._closed = True
        self._launched.close()

    def _looker(self) -> Callable[[], None]:
        """What main calls while it waits for a process. Holds only a weak reference."""
        method = weakref.WeakMethod(self._look)
        return lambda: _call(method)

    def _look(self) -> None:
        """Restarts processes that died or hang, since main waits for them. Raises if one cannot."""
        if self._closed:
            raise Failure("this backend is closed: no process is left to answer")
        self._supervisor.look(0.0)
        for host in self._launched.hosts:
            if host.failure is not None:
                raise host.failure


def _new_outbox(name: str) -> outbox.Outbox:
    try:
        return outbox.make()
    except OSError as error:
        raise running.cannot_start(name, error) from error


def _nothing() -> None:
    """Processes interleave without help."""


def patience_for(hang_s: float) -> Patience:
    return Patience(hang_s=hang_s, start_s=max(Patience.start_s, hang_s))


def free_client(used: Set[int]) -> int:
    """The lowest number that no process has; main has one too."""
    for number in range(MOST_CLIENTS):
        if number != MAIN and number not in used:
            return number
    raise BadRequest(f"more than {MOST_CLIENTS - 1} processes", "use fewer workers")


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    look = method()
    if look is not None:
        look()


make = Processes
