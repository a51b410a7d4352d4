"""The supervisor in the parent: notices death and hanging, restarts, gives up when it must."""

from __future__ import annotations

import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field

from manyhands.backends.processes import control
from manyhands.backends.processes.control import COMMAND, PARK, PROGRESS, STATE, WAITING
from manyhands.backends.processes.packing import Parcel
from manyhands.backends.processes.spawn import End, Running
from manyhands.types import Array, Failure, Fault, Post

LEAST_HANG_S = 2.0  # who has nothing to do says so every half second
FOREVER_S = 600.0  # the kernel ends who was killed, sooner or later


@dataclass(frozen=True)
class Patience:
    """How long and how often."""

    hang_s: float = 120.0  # without progress
    start_s: float = 300.0  # the same until the first: imports, environments, memory
    quick_s: float = 5.0  # who dies sooner after its first progress has died quickly
    deaths: int = 5  # quick ones in a row
    backoff_s: float = 0.1  # doubled with each quick death
    longest_backoff_s: float = 10.0
    grace_s: float = 4.0  # between being told to stop and being killed
    dump_s: float = 0.5  # for who hangs to write down where


@dataclass
class Place:
    """One seat or hosted object: who is there, and the fate of those before."""

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
    progress: int = 0  # when last looked at
    first_progress_s: float | None = None
    still_s: float = 0.0  # for how long it has not changed
    kill_at_s: float | None = None  # it hangs, has been asked where, and has until then
    verdict: str = ""  # why we killed it
    failure: Failure | None = None  # why nobody follows it

    @property
    def post(self) -> Post:
        return Post(
            self.role, self.index, self.incarnation, self.running.pid if self.running else 0
        )

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass
class Supervisor:
    table: Array
    patience: Patience
    places: list[Place] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    hopeless: Failure | None = None  # of the first that was given up
    _looked_s: float = field(default_factory=time.monotonic)

    # --- Coming and going -----------------------------------------------------------------------

    def hire(self, place: Place) -> None:
        control.tell(self.table, place.client, control.GO)
        self.places.append(place)
        self._start(place)

    def _start(self, place: Place) -> None:
        control.reset(self.table, place.client)
        place.progress = int(self.table[place.client, PROGRESS])
        place.first_progress_s, place.still_s = None, 0.0
        place.kill_at_s, place.verdict = None, ""
        place.running = Running(place.parcel, incarnation=place.incarnation, threads=place.threads)

    def dismiss(self, places: list[Place], grace_s: float) -> None:
        """Ends them: asked first, then killed. Afterwards they are gone."""
        for place in places:
            place.finished = place.finished or place.running is None  # nobody is to follow
            control.tell(self.table, place.client, control.STOP)
        self._wait_for(places, grace_s)
        for place in places:
            if place.running is not None:
                self._see_off(place, place.running, grace_s)
                self.table[place.client, control.ENDS] += 1
            place.running = None
            if place in self.places:
                self.places.remove(place)

    def _wait_for(self, places: list[Place], longest_s: float) -> None:
        """Others are looked after meanwhile: these may wait for one that has just died."""
        deadline = time.monotonic() + longest_s
        with suppress(OSError):  # somebody could not be started
            while any(place.running for place in places) and time.monotonic() < deadline:
                self.look(control.LOOK_S)

    def _see_off(self, place: Place, running: Running, grace_s: float) -> None:
        running.signal(signal.SIGKILL)
        end = running.wait(FOREVER_S)
        begun = int(self.table[place.client, PROGRESS]) != place.progress or place.first_progress_s
        if grace_s and begun and end is not None:  # who was still starting has not heard
            cause = f"had not left {grace_s:g} s after it was told to"
            self._report(place, cause, "none: it was to stop", end)

    # --- Looking after them ---------------------------------------------------------------------

    def look(self, wait_s: float) -> None:
        """Waits a little, less if somebody dies; then does what is to be done."""
        self._sleep(wait_s)
        now_s = time.monotonic()
        # While main itself was stopped or busy elsewhere nobody is to blame.
        passed_s, self._looked_s = min(now_s - self._looked_s, 1.0), now_s
        for place in self.places:
            if place.running is not None and (end := place.running.end()) is not None:
                place.running = None
                self._ended(place, end, now_s)
            elif place.running is not None:
                self._watch(place, now_s, passed_s)
            elif not (place.finished or place.failure) and now_s >= place.restart_at_s:
                self._start(place)
        self._judge(now_s)

    def _sleep(self, wait_s: float) -> None:
        poller = select.poll()
        for place in self.places:
            if place.running is not None:
                poller.register(place.running.sentinel, select.POLLIN)
        poller.poll(wait_s * 1000)

    # --- Death ----------------------------------------------------------------------------------

    def _ended(self, place: Place, end: End, now_s: float) -> None:
        self.table[place.client, control.ENDS] += 1  # for who waits for it in a group
        told_to_stop = bool(self.table[place.client, control.COMMAND] == control.STOP)
        if end.orderly or told_to_stop:
            place.finished = True
            if not end.orderly:
                self._report(place, place.verdict or end.cause, "none: it was to stop", end)
            return
        quick = place.first_progress_s is None or (
            now_s - place.first_progress_s < self.patience.quick_s
        )
        place.quick_deaths = place.quick_deaths + 1 if quick else 0
        cause = place.verdict or end.cause
        if end.refusal is not None:
            what, remedy = end.refusal
            self._give_up(place, end, Failure(f"{place.name}: {what}", remedy))
        elif place.quick_deaths >= self.patience.deaths:
            failure = f"{place.name} died {place.quick_deaths} times in a row: {cause}"
            self._give_up(place, end, Failure(failure, end.detail or "see faults.jsonl"))
        else:
            self._report(place, cause, f"restarted as incarnation {place.incarnation + 1}", end)
            place.restart_at_s = now_s + self._backoff_s(place)
        place.incarnation += 1

    def _backoff_s(self, place: Place) -> float:
        if place.quick_deaths == 0:
            return 0.0
        patience = self.patience
        return min(patience.backoff_s * 2.0**place.quick_deaths, patience.longest_backoff_s)

    def _give_up(self, place: Place, end: End, failure: Failure) -> None:
        self._report(place, place.verdict or end.cause, "gave up", end)
        place.failure = failure
        self.hopeless = self.hopeless or failure

    def _report(self, place: Place, cause: str, action: str, end: End) -> None:
        post = Post(place.role, place.index, place.incarnation, end.pid)
        self.faults.append(Fault(time.time(), post, cause, action, end.detail))

    # --- Hanging --------------------------------------------------------------------------------

    def _watch(self, place: Place, now_s: float, passed_s: float) -> None:
        words = (PROGRESS, STATE, COMMAND)
        progress, state, command = (int(self.table[place.client, word]) for word in words)
        if progress != place.progress:
            place.progress, place.still_s = progress, 0.0
            place.first_progress_s = place.first_progress_s or now_s
        elif command == PARK and control.is_parked(self.table, place.client):
            place.still_s = 0.0
        else:  # who waits for another has twice the time: that one may be the one who hangs
            place.still_s += passed_s / 2 if state == WAITING else passed_s
        if place.kill_at_s is not None and now_s >= place.kill_at_s and place.running is not None:
            place.running.signal(signal.SIGKILL)

    def _judge(self, now_s: float) -> None:
        """Accuses who hangs; who waits for another then has time again."""
        still = [
            (place, place.running)
            for place in self.places
            if place.running and place.kill_at_s is None and place.still_s > self._limit_s(place)
        ]
        busy = [pair for pair in still if self.table[pair[0].client, STATE] != WAITING]
        for place, running in busy or still:
            place.verdict = f"no progress for {self._limit_s(place):g} s"
            place.kill_at_s = now_s + self.patience.dump_s
            running.signal(signal.SIGUSR1)  # faulthandler writes its stack down
        for place, _ in still:
            place.still_s = 0.0

    def _limit_s(self, place: Place) -> float:
        patience = self.patience
        return max(patience.hang_s if place.first_progress_s else patience.start_s, LEAST_HANG_S)

    # --- For main -------------------------------------------------------------------------------

    def take_faults(self) -> list[Fault]:
        faults, self.faults = self.faults, []
        return faults

    def parked(self, place: Place) -> bool:
        return place.running is None or control.is_parked(self.table, place.client)
