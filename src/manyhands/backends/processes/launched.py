"""The processes of one node and the orders to them: park, save, continue, stop."""

from __future__ import annotations

import time
from collections.abc import Sequence

from manyhands.backends.processes import control, spawn
from manyhands.backends.processes.outbox import Outbox
from manyhands.backends.processes.supervisor import Patience, SupervisedProcess, Supervisor
from manyhands.types import Array, Fault, ProcessInfo

PARKING_LOOK_S = 0.002
STUCK_S = 0.02  # all late workers wait for others: then each takes one more turn


class Launched:
    """Hosted objects run from `host` to `close`, workers from `start` to `dismiss`."""

    def __init__(self, table: Array, patience: Patience, imports: Sequence[str] = ()) -> None:
        """`imports`: modules that all processes share. They are imported once."""
        zygote = spawn.Zygote(imports)
        self._table, self.supervisor = table, Supervisor(table, patience, zygote)
        self.hosts: list[SupervisedProcess] = []
        self.workers: list[SupervisedProcess] = []
        self.outboxes: dict[int, Outbox] = {}  # of the workers, by rank
        self._imports = imports

    def begin(self) -> None:
        """Begins to import. Call it in the thread that starts processes: they end with it."""
        if self._imports:
            self.supervisor.zygote.begin()

    def host(self, process: SupervisedProcess) -> None:
        self.hosts.append(process)
        self.supervisor.launch(process)

    def start(self, workers: list[SupervisedProcess], outboxes: dict[int, Outbox]) -> None:
        """Beside those that run. `dismiss` ends all, also if one of these cannot be started."""
        self.workers += workers
        self.outboxes |= outboxes
        for process in workers:
            self.supervisor.launch(process)

    @property
    def finished(self) -> bool:
        return all(process.finished for process in self.workers)

    def dismiss(self) -> None:
        self.supervisor.dismiss(self.workers, self.supervisor.patience.grace_s)
        self.workers, self.outboxes = [], {}

    # --- Orders -----------------------------------------------------------------------------------

    def tell(self, command: int) -> None:
        for process in self.workers:
            control.tell(self._table, process.client, command)

    def park(self, timeout_s: float, *, step: bool = False) -> frozenset[int]:
        """`step`: workers that are parked take one more turn first."""
        self.tell(control.STEP if step else control.PARK)
        deadline, stuck_s = time.monotonic() + timeout_s, 0.0
        while True:
            late = [p for p in self.workers if not (p.finished or self._is_at_yield(p))]
            if not late or time.monotonic() > deadline:
                return frozenset(process.index for process in late)
            waiting = all(control.is_waiting(self._table, process.client) for process in late)
            stuck_s = stuck_s + PARKING_LOOK_S if waiting else 0.0
            if stuck_s > STUCK_S:  # they wait in a group for workers that are parked
                self.tell(control.STEP)
                stuck_s = 0.0
            self.supervisor.look(PARKING_LOOK_S)

    def _is_at_yield(self, process: SupervisedProcess) -> bool:
        resting = process.running and control.is_resting(self._table, process.client)
        return self.supervisor.parked(process) and not resting

    def save(self, timeout_s: float) -> None:
        """Each parked worker puts its state into its outbox. Those that are late leave it empty."""
        deadline = time.monotonic() + timeout_s
        for process in self.workers:
            if not process.finished:  # it may hold the state that a process now dead left earlier
                self.outboxes[process.index].clear()
        alive = [process for process in self.workers if process.running is not None]
        for process in alive:
            control.tell_to_save(self._table, process.client)
        while any(p.running and not control.has_saved(self._table, p.client) for p in alive):
            if time.monotonic() > deadline:
                break
            for process in alive:
                control.wake(self._table, process.client)
            self.supervisor.look(PARKING_LOOK_S)

    # --- What became of them ----------------------------------------------------------------------

    def take_faults(self) -> list[Fault]:
        return self.supervisor.take_faults()

    def process_table(self) -> list[ProcessInfo]:
        return [process.info for process in (*self.workers, *self.hosts) if not process.finished]

    def close(self) -> None:
        self.supervisor.dismiss(list(self.supervisor.processes), 0.0)
        self.supervisor.zygote.close()
        self.workers, self.hosts = [], []
