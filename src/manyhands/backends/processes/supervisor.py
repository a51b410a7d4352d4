"""The supervisor in the parent: finds processes that died or hang, restarts them, or gives up."""

from __future__ import annotations

import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from manyhands.backends.processes import control
from manyhands.backends.processes.control import COMMAND, PARK, PROGRESS, STATE, STEP, WAITING
from manyhands.backends.processes.packing import Parcel
from manyhands.backends.processes.running import End, Running, cannot_start
from manyhands.backends.processes.spawn import Zygote
from manyhands.types import Array, Failure, Fault, ProcessInfo

LEAST_HANG_S = 2.0  # an idle process reports progress every half second
FOREVER_S = 600.0  # a killed process ends sooner or later


@dataclass(frozen=True)
class Patience:
    """Time limits, and how many deaths are too many."""

    hang_s: float = 120.0  # without progress
    start_s: float = 300.0  # without first progress: imports, environments, memory
    quick_s: float = 5.0  # a death sooner after the first progress is a quick one
    deaths: int = 5  # quick ones in a row
    backoff_s: float = 0.1  # doubled with each quick death
    longest_backoff_s: float = 10.0
    grace_s: float = 4.0  # between being told to stop and being killed
    dump_s: float = 0.5  # for a hanging process to write its stack


@dataclass
class SupervisedProcess:
    """A rank or hosted object: its running process, and what became of earlier ones."""

    client: int
    role: str
    index: int
    parcel: Parcel
    threads: int
    running: Running | None = None
    incarnation: int = 0
    finished: bool = False
    quick_deaths: int = 0
    restart_at_s: float = 0.0
    no_room_since_s: float | None = None  # since when no process could be started
    progress: int = 0  # at the last check
    first_progress_s: float | None = None
    still_s: float = 0.0  # time without progress
    kill_at_s: float | None = None  # it hangs, and is killed then
    verdict: str = ""  # why the supervisor killed it
    failure: Failure | None = None  # why it is not restarted

    @property
    def info(self) -> ProcessInfo:
        return ProcessInfo(
            self.role, self.index, self.incarnation, self.running.pid if self.running else 0
        )

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass
class Supervisor:
    table: Array
    patience: Patience
    zygote: Zygote
    processes: list[SupervisedProcess] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    hopeless: Failure | None = None  # of the first process given up
    bell: int | None = None  # a descriptor that ends a sleep when it can be read
    _looked_s: float = field(default_factory=time.monotonic)

    # --- Starting, ending -----------------------------------------------------------------------

    def launch(self, process: SupervisedProcess) -> None:
        control.tell(self.table, process.client, control.GO)
        try:
            self._start(process)
        except OSError as error:
            raise cannot_start(process.name, error) from error
        self.processes.append(process)

    def _start(self, process: SupervisedProcess) -> None:
        control.reset(self.table, process.client)
        process.progress = int(self.table[process.client, PROGRESS])
        process.first_progress_s, process.still_s = None, 0.0
        process.kill_at_s, process.verdict = None, ""
        process.running = Running(
            self.zygote, process.parcel, incarnation=process.incarnation, threads=process.threads
        )

    def _restart(self, process: SupervisedProcess, now_s: float) -> None:
        """Restarts, or tries again later: descriptors, processes or memory may be short."""
        try:
            self._start(process)
            process.no_room_since_s = None
        except OSError as error:
            failure = cannot_start(process.name, error)
            since_s = process.no_room_since_s
            if since_s is None:
                process.no_room_since_s = now_s
                self._note(process, failure.what.removeprefix(f"{process.name} "), "tried again", 0)
            elif now_s - since_s > self.patience.start_s:
                process.failure = failure
                self.hopeless = self.hopeless or failure
            process.restart_at_s = now_s + self.patience.longest_backoff_s / 10

    def dismiss(self, processes: list[SupervisedProcess], grace_s: float) -> None:
        """Tells them to stop, waits, then kills the rest. Returns when all have ended."""
        for process in processes:
            process.finished = process.finished or process.running is None  # not to be restarted
            control.tell(self.table, process.client, control.STOP)
        self._wait_for(processes, grace_s)
        for process in processes:
            if process.running is not None:
                self._kill(process, process.running, grace_s)
                self.table[process.client, control.ENDS] += 1
            process.running = None
            if process in self.processes:
                self.processes.remove(process)

    def _wait_for(self, processes: list[SupervisedProcess], longest_s: float) -> None:
        """Also restarts other processes: these may wait for one that has just died."""
        deadline = time.monotonic() + longest_s
        with suppress(OSError):  # a process could not be started
            while any(process.running for process in processes) and time.monotonic() < deadline:
                self.look(control.LOOK_S)

    def _kill(self, process: SupervisedProcess, running: Running, grace_s: float) -> None:
        running.signal(signal.SIGKILL)
        end = running.wait(FOREVER_S)
        begun = (
            int(self.table[process.client, PROGRESS]) != process.progress
            or process.first_progress_s
        )
        if grace_s and begun and end is not None:  # a starting process could not know
            cause = f"did not stop within {grace_s:g} s"
            self._report(process, cause, "none: it was stopping", end)

    # --- Looking after them ---------------------------------------------------------------------

    def look(self, wait_s: float) -> None:
        """Waits, less if a process dies; then restarts, kills or gives up processes."""
        self._sleep(wait_s)
        now_s = time.monotonic()
        # While main itself was stopped or busy, no process is to blame.
        passed_s, self._looked_s = min(now_s - self._looked_s, 1.0), now_s
        for process in self.processes:
            if process.running is not None and (end := process.running.end()) is not None:
                process.running = None
                self._ended(process, end, now_s)
            elif process.running is not None:
                self._watch(process, now_s, passed_s)
            elif not (process.finished or process.failure) and now_s >= process.restart_at_s:
                self._restart(process, now_s)
        self._find_hanging(now_s)

    def _sleep(self, wait_s: float) -> None:
        poller = select.poll()
        if self.bell is not None:
            poller.register(self.bell, select.POLLIN)
        for process in self.processes:
            if process.running is not None:
                poller.register(process.running.sentinel, select.POLLIN)
        poller.poll(wait_s * 1000)

    # --- Death ----------------------------------------------------------------------------------

    def _ended(self, process: SupervisedProcess, end: End, now_s: float) -> None:
        self.table[process.client, control.ENDS] += 1  # for members of its group
        told_to_stop = bool(self.table[process.client, control.COMMAND] == control.STOP)
        done = control.is_done(self.table, process.client)
        if done or told_to_stop:
            process.finished = True
            if not done:
                self._report(process, process.verdict or end.cause, "none: it was stopping", end)
            return
        quick = process.first_progress_s is None or (
            now_s - process.first_progress_s < self.patience.quick_s
        )
        process.quick_deaths = process.quick_deaths + 1 if quick else 0
        cause = process.verdict or end.cause
        if end.refusal is not None:
            what, remedy = end.refusal
            self._give_up(process, end, Failure(f"{process.name}: {what}", remedy))
        elif process.quick_deaths >= self.patience.deaths:
            failure = f"{process.name} died {process.quick_deaths} times in a row: {cause}"
            self._give_up(process, end, Failure(failure, end.detail or "see faults.jsonl"))
        else:
            self._report(process, cause, f"restarted as incarnation {process.incarnation + 1}", end)
            process.restart_at_s = now_s + self._backoff_s(process)
        process.incarnation += 1

    def _backoff_s(self, process: SupervisedProcess) -> float:
        if process.quick_deaths == 0:
            return 0.0
        patience = self.patience
        return min(patience.backoff_s * 2.0**process.quick_deaths, patience.longest_backoff_s)

    def _give_up(self, process: SupervisedProcess, end: End, failure: Failure) -> None:
        self._report(process, process.verdict or end.cause, "gave up", end)
        process.failure = failure
        self.hopeless = self.hopeless or failure

    def _report(self, process: SupervisedProcess, cause: str, action: str, end: End) -> None:
        self._note(process, cause, action, end.pid, end.detail)

    def _note(
        self, process: SupervisedProcess, cause: str, action: str, pid: int, detail: str = ""
    ) -> None:
        info = ProcessInfo(process.role, process.index, process.incarnation, pid)
        self.faults.append(Fault(time.time(), info, cause, action, detail))

    # --- Hanging --------------------------------------------------------------------------------

    def _watch(self, process: SupervisedProcess, now_s: float, passed_s: float) -> None:
        words = (PROGRESS, STATE, COMMAND)
        progress, state, command = (int(self.table[process.client, word]) for word in words)
        if progress != process.progress:
            process.progress, process.still_s = progress, 0.0
            process.first_progress_s = process.first_progress_s or now_s
        elif command in (PARK, STEP) and control.is_parked(self.table, process.client):
            process.still_s = 0.0
        else:  # a process that waits has twice the time: the awaited one may hang
            process.still_s += passed_s / 2 if state == WAITING else passed_s
        if (
            process.kill_at_s is not None
            and now_s >= process.kill_at_s
            and process.running is not None
        ):
            process.running.signal(signal.SIGKILL)

    def _find_hanging(self, now_s: float) -> None:
        """Finds hanging processes. Those that wait for another get new time."""
        still = [
            (process, process.running)
            for process in self.processes
            if process.running
            and process.kill_at_s is None
            and process.still_s > self._limit_s(process)
        ]
        busy = [pair for pair in still if self.table[pair[0].client, STATE] != WAITING]
        for process, running in busy or still:
            process.verdict = f"no progress for {self._limit_s(process):g} s"
            process.kill_at_s = now_s + self.patience.dump_s
            running.signal(signal.SIGUSR1)  # faulthandler writes its stack
        for process, _ in still:
            process.still_s = 0.0

    def _limit_s(self, process: SupervisedProcess) -> float:
        patience = self.patience
        return max(patience.hang_s if process.first_progress_s else patience.start_s, LEAST_HANG_S)

    # --- For main -------------------------------------------------------------------------------

    def take_faults(self) -> list[Fault]:
        faults, self.faults = self.faults, []
        return faults

    def parked(self, process: SupervisedProcess) -> bool:
        return process.running is None or control.is_parked(self.table, process.client)
