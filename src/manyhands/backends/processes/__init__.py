"""processes: each worker in its own interpreter, over shared memory; restarted if it dies."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.backends.processes import (
    channel,
    control,
    group,
    hosted,
    lock,
    packing,
    queued,
    segment,
    spawn,
    work,
)
from manyhands.backends.processes.control import LOOK_S, MAIN, MOST_CLIENTS
from manyhands.backends.processes.supervisor import Patience, SupervisedProcess, Supervisor
from manyhands.types import Array, BadRequest, Failure, Fault, Job, ProcessInfo

if TYPE_CHECKING:
    from torch import Tensor

MOST_PROCESSES = MOST_CLIENTS - 1  # main is one of the clients
PARKING_LOOK_S = 0.002
Target = Callable[..., None]  # what a process runs: control row, incarnation, more


class Processes:
    """Hosted objects run from `host` to `close`, workers while `run` does."""

    def __init__(
        self,
        seed: int = 0,  # noqa: ARG002
        *,
        hang_s: float = 120.0,
        patience: Patience | None = None,
    ) -> None:
        """`seed` has no effect: the kernel schedules processes."""
        spawn.prepare()
        self._table = control.new_table()
        self._supervisor = Supervisor(self._table, patience or _patience(hang_s))
        self._hosts: list[SupervisedProcess] = []
        self._workers: list[SupervisedProcess] = []
        self._attend_at_s, self._closed = 0.0, False
        weakref.finalize(self, _end, self._supervisor)

    # --- What processes share ---------------------------------------------------------------------

    def share(self, tensor: Tensor) -> Tensor:
        return segment.share(tensor)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        return segment.allocate(shape, dtype)

    def channel(self, capacity: int) -> channel.Channel:
        return channel.make(capacity)

    def pause(self) -> Callable[[], None]:
        return _nothing

    def lock(self) -> lock.Lock:
        return lock.Lock(look=self._looker())

    def group(self, n: int, numbers: int = 65_536) -> group.Group:
        return group.make(self._table, n, numbers)

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots",
    ) -> hosted.Handle | queued.Handle:  # fmt: skip
        module: Any = {"slots": hosted, "queue": queued}[transport]
        label = f"{name} {len(self._hosts)}"
        box, handle = module.make(label, numbers=numbers, depth=depth, look=self._looker())
        process = self._new_process(name, len(self._hosts), threads, module.serve, (factory, box))
        self._hosts.append(process)
        self._supervisor.launch(process)
        result: hosted.Handle | queued.Handle = handle
        return result

    # --- Workers ----------------------------------------------------------------------------------

    def run(self, jobs: Sequence[Job]) -> Iterator[Fault | None]:
        if self._workers:
            raise RuntimeError("this backend runs workers already")
        supervisor = self._supervisor
        try:
            for index, job in enumerate(jobs):
                given = (job.work, index, job.role, job.nice)
                process = self._new_process(job.role, index, job.threads, work.drive, given)
                self._workers.append(process)
            for process in self._workers:
                supervisor.launch(process)
            while not all(process.finished for process in self._workers):
                supervisor.look(LOOK_S)
                while supervisor.faults:  # one by one: `attend` may take the rest
                    yield supervisor.faults.pop(0)
                if supervisor.hopeless is not None:
                    raise supervisor.hopeless
                yield None
        finally:
            supervisor.dismiss(self._workers, supervisor.patience.grace_s)
            self._workers = []

    def _new_process(
        self,
        role: str,
        index: int,
        threads: int,
        target: Target,
        given: tuple[Any, ...],
    ) -> SupervisedProcess:
        used = {MAIN} | {process.client for process in (*self._hosts, *self._workers)}
        free = next((number for number in range(MOST_CLIENTS) if number not in used), None)
        if free is None:
            raise BadRequest(f"more than {MOST_CLIENTS - 1} processes", "use fewer workers")
        content = (self._table, free, target, given)
        parcel = packing.pack(content, client=free, name=f"{role} {index}")
        return SupervisedProcess(free, role, index, parcel, threads)

    def park(self, timeout_s: float) -> frozenset[int]:
        self._tell(control.PARK)
        deadline = time.monotonic() + timeout_s
        while True:
            late = [p for p in self._workers if not (p.finished or self._supervisor.parked(p))]
            if not late or time.monotonic() > deadline:
                return frozenset(process.index for process in late)
            self._supervisor.look(PARKING_LOOK_S)

    def go_on(self) -> None:
        self._tell(control.GO)

    def stop(self) -> None:
        self._tell(control.STOP)

    def _tell(self, command: int) -> None:
        for process in self._workers:
            control.tell(self._table, process.client, command)

    def attend(self) -> list[Fault]:
        if not self._closed and time.monotonic() >= self._attend_at_s:
            self._attend_at_s = time.monotonic() + LOOK_S
            self._supervisor.look(0.0)
        faults = self._supervisor.take_faults()
        if not (faults or self._closed) and self._supervisor.hopeless is not None:
            raise self._supervisor.hopeless
        return faults

    def process_table(self) -> list[ProcessInfo]:
        return [process.info for process in (*self._workers, *self._hosts) if not process.finished]

    def close(self) -> None:
        self._closed = True
        _end(self._supervisor)
        self._workers, self._hosts = [], []

    def _looker(self) -> Callable[[], None]:
        """What main calls while it waits for a process. Holds only a weak reference."""
        method = weakref.WeakMethod(self._look)
        return lambda: _call(method)

    def _look(self) -> None:
        """Restarts processes that died or hang, since main waits for them. Raises if one cannot."""
        if self._closed:
            raise Failure("this backend is closed: no process is left to answer")
        self._supervisor.look(0.0)
        for host in self._hosts:
            if host.failure is not None:
                raise host.failure


def _nothing() -> None:
    """Processes interleave without help."""


def _patience(hang_s: float) -> Patience:
    return Patience(hang_s=hang_s, start_s=max(Patience.start_s, hang_s))


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    look = method()
    if look is not None:
        look()


def _end(supervisor: Supervisor) -> None:
    supervisor.dismiss(list(supervisor.processes), 0.0)


make = Processes
