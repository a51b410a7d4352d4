"""All node runners of a run: which processes each has, what is ordered, and what became of them.

If a node runner is lost, its processes are started again elsewhere, or where it was: main's memory
is still there. From then on nothing that it sends is taken.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from manyhands.backends.processes import patience_for, spawn
from manyhands.backends.ray import joining, placing, reserving, runner, shipping
from manyhands.backends.ray.nodes import Node
from manyhands.backends.ray.options import RayOptions
from manyhands.backends.ray.reserving import Reservation
from manyhands.backends.ray.runner import CALL_S, CLOSING_S, LOST_S, SILENT_S, Call, Lost, Runner
from manyhands.backends.ray.starting import Hire, Hosted, Starting
from manyhands.types import Failure, Fault, Job, ProcessInfo, State

if TYPE_CHECKING:
    from manyhands.backends.ray.joining import Cluster
    from manyhands.types.needs import Needs

FLUSH_S = 30.0
STEP_S = 0.3  # for members of groups to park, before all take one more turn
NODES_S = 1.0  # between two looks for a node with room
MOST_LOSSES, QUICK_S = 5, 30.0  # of main's node runner, each so soon after the one before


class Runners:
    def __init__(
        self,
        *,
        hang_s: float,
        imports: Sequence[str],
        options: RayOptions | None,
        cluster: Cluster | None,
    ) -> None:
        """`cluster`: one that was joined before, and stays joined."""
        self._options = options or RayOptions()
        self._own, self._closed = cluster is None, False
        self.cluster = cluster or joining.join(self._options)
        self._cpus_each = self.cluster.cpus_each(self._options)
        self._reservation: Reservation | None = None
        self._patience = patience_for(hang_s)
        self.jobs, self.faults = list[Job](), list[Fault]()
        self.failure: Failure | None = None
        self._incarnations: dict[int, int] = {}  # by rank
        self._finished: set[int] = set()  # ranks
        self._waiting: list[int] = []  # ranks for which no node has room
        self._losses: list[float] = []  # of main's node runner: when
        self._look_at_s, self._parked = 0.0, False
        try:
            spawn.prepare()
            self.there = Starting(self.cluster.nodes[0], self._patience, imports)
        except BaseException:
            self._leave()
            raise

    def reserve(self, needs: Needs, tell: Callable[[str], None]) -> None:
        self._reservation = reserving.prepare(self.cluster, self._options, needs, tell)

    # --- Starting ---------------------------------------------------------------------------------

    def host(self, one: Hosted) -> None:
        self.there.host(one)

    def hire(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self._finished, self._incarnations = set(), dict.fromkeys(range(len(jobs)), 0)
        self._hire(self.there.core, [rank for rank, job in enumerate(jobs) if not job.anywhere])
        full = self._deal([rank for rank, job in enumerate(jobs) if job.anywhere])
        self._hire(self.there.core, full)  # there is no node with room: they share the CPUs here

    def _hire(self, where: Runner, ranks: Sequence[int]) -> None:
        if not ranks:
            return
        hires = [Hire(rank, self.jobs[rank], self._incarnations[rank]) for rank in ranks]
        self.there.hire(where, hires)
        if self._parked:  # they wait before their first step
            where.order("park", CALL_S, False)

    def _deal(self, ranks: list[int]) -> list[int]:
        """Places them on nodes with room; returns those for which there is none."""
        if not ranks:
            return []
        nodes = {node.id: node for node in self.cluster.nodes}
        free = {id: self._room(node) for id, node in nodes.items()}
        rest = iter(ranks)
        for id, count in placing.deal(len(ranks), free, cpus_each=self._cpus_each).items():
            some = list(islice(rest, count))
            try:
                if some:
                    self._hire(self.there.on(nodes[id]), some)
            except Lost as lost:
                self._give_up(nodes[id], some, str(lost))
                return [*some, *rest]  # tried again later
            if self._reservation is not None:
                self._reservation.cover(nodes[id], self._cpus_taken(id))
        return list(rest)

    def _deal_waiting(self) -> None:
        ranks, self._waiting = self._waiting, []
        self._waiting += self._deal(ranks)

    def _give_up(self, node: Node, ranks: Sequence[int], why: str) -> None:
        """A node runner that was lost before it had started these."""
        for each in [each for each in self.there.away if each.node.id == node.id]:
            for rank in ranks:
                each.ranks.pop(rank, None)
            self._lose(each, why)

    def _room(self, node: Node) -> float:
        taken = self._cpus_taken(node.id)
        if self._reservation is None:
            return node.cpus - taken
        return self._reservation.room(node, taken)

    def _cpus_taken(self, id: str) -> float:
        hosted = None if self._reservation is None else self._reservation.places.hosted
        there = [each for each in self.there.all if each.node.id == id]
        return self._cpus_each * sum(each.counted(hosted) for each in there)

    # --- Orders to all ----------------------------------------------------------------------------

    def _tell_all(self, method: str, *given: Any, timeout_s: float = CALL_S) -> dict[Runner, Any]:
        """To all at once. A node runner that does not answer is lost."""
        calls: dict[Runner, Call] = {
            each: each.begin(method, *given, each.news.faults_so_far) for each in self.there.all
        }
        answers: dict[Runner, Any] = {}
        for each, call in calls.items():
            try:
                answers[each] = each.take(call.result(timeout_s))
            except Lost as lost:
                self._lose(each, str(lost))
        return answers

    def tell(self, method: str) -> None:
        self._parked = False
        self._tell_all(method)

    def park(self, timeout_s: float) -> frozenset[int]:
        self._parked = True
        for each in self.there.away:
            if each.silent_s > SILENT_S:
                self._lose(each, f"the node runner of {each.node.name} is silent")
        deadline, late = time.monotonic() + timeout_s, self._late(timeout_s, step=False)
        while late and time.monotonic() < deadline:  # they wait for members of other nodes
            late = self._late(timeout_s, step=True)
        return late

    def _late(self, timeout_s: float, *, step: bool) -> frozenset[int]:
        """Orders to park. `step`: workers that are parked take one more turn first."""
        timeout_s = STEP_S if self.there.has_proxies else timeout_s
        answers = self._tell_all("park", timeout_s, step, timeout_s=timeout_s + CALL_S)
        return frozenset[int]().union(*answers.values())

    def collect(self, timeout_s: float) -> dict[int, State]:
        answers = self._tell_all("collect", timeout_s, timeout_s=timeout_s + CALL_S)
        return {
            rank: pickle.loads(content)
            for states in answers.values()
            for rank, content in states.items()
        }

    def flush(self) -> None:
        """What other nodes have not sent yet comes now. A silent node is not waited for."""
        calls = {each: each.begin("flush", FLUSH_S) for each in self.there.away}
        for each, call in calls.items():
            try:
                if not call.result(FLUSH_S + CALL_S, silent_s=SILENT_S):
                    raise Lost(f"node {each.node.name} did not send what it has")
            except Lost as lost:
                if each.silent_s <= SILENT_S:
                    self._lose(each, str(lost))

    def dismiss(self) -> None:
        jobs, self.jobs, self._waiting, self._parked = self.jobs, [], [], False
        if jobs and not self._closed:
            self._tell_all("dismiss", timeout_s=self._patience.grace_s + CALL_S)
            self._take_news()
        for each in self.there.all:
            each.ranks.clear()
        self.there.orders.outboxes = {}

    # --- Watching ---------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return len(self._finished) == len(self.jobs)

    def watch(self, timeout_s: float) -> None:
        """Waits for news and notes them. Replaces node runners that are lost."""
        for each in runner.wait(self.there.all, timeout_s):
            try:
                each.hear_tick()
            except Lost as lost:
                self._lose(each, str(lost))
        self._take_news()
        for each in self.there.all:
            each.count_silence()
            self._note_silence(each)
        if self._waiting and time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + NODES_S
            self._deal_waiting()

    def _note_silence(self, each: Runner) -> None:
        if each.silent_s > LOST_S:
            self._lose(each, f"the node runner of {each.node.name} was silent for {LOST_S:g} s")
        elif each.silent_s > SILENT_S and not each.is_silent:
            each.is_silent = True
            self._note(each, f"silent for {SILENT_S:g} s", "waited for")
        elif each.silent_s < SILENT_S and each.is_silent:
            each.is_silent = False
            self._note(each, "was silent", "none: it is back")

    def _take_news(self) -> None:
        for each in self.there.all:
            self.faults += each.faults
            each.faults.clear()
            self._finished |= each.news.finished & each.ranks.keys()
            for rank in each.ranks.keys() & self._incarnations.keys():
                now = each.incarnation_of(self.jobs[rank].role, rank) if self.jobs else 0
                self._incarnations[rank] = max(self._incarnations[rank], now)
                if each is not self.there.core:
                    has_ended = rank in self._finished or not each.is_running(rank, now)
                    self.there.note_life(rank, self._incarnations[rank] + has_ended)
            if each.news.failure is not None and self.failure is None:
                self.failure = shipping.named(each.node, *each.news.failure)

    # --- Losing a node runner ---------------------------------------------------------------------

    def _lose(self, lost: Runner, why: str) -> None:
        """Starts its processes again. Nothing that it still sends is taken."""
        self._take_news()
        self._note(lost, why, "its processes are started again", loses_node=True)
        with suppress(Exception):  # it may be gone with its node
            lost.kill()
        ranks = [rank for rank in lost.ranks if rank not in self._finished and self.jobs]
        for rank in ranks:
            self._incarnations[rank] += 1
            self.there.note_life(rank, self._incarnations[rank])
            self._note_restart(lost, rank)
        if lost is self.there.core:
            self._replace_core(lost, ranks)
            return
        self.there.part_with(lost)
        self._waiting += ranks
        self._deal_waiting()

    def _replace_core(self, lost: Runner, ranks: list[int]) -> None:
        now_s = time.monotonic()
        self._losses = [at_s for at_s in self._losses if now_s - at_s < QUICK_S] + [now_s]
        if len(self._losses) > MOST_LOSSES:
            raise Failure(f"the node runner of {lost.node.name} died {len(self._losses)} times")
        self.there.replace_core()
        self._hire(self.there.core, ranks)

    def _note(self, where: Runner, cause: str, action: str, *, loses_node: bool = False) -> None:
        process = ProcessInfo("node runner", where.number, 0, 0, where.node.name)
        self.faults.append(Fault(time.time(), process, cause, action, loses_node=loses_node))

    def _note_restart(self, lost: Runner, rank: int) -> None:
        now = self._incarnations[rank]
        process = ProcessInfo(self.jobs[rank].role, rank, now - 1, 0, lost.node.name)
        self.faults.append(
            Fault(
                time.time(), process, "its node runner was lost", f"restarted as incarnation {now}"
            )
        )

    def take_faults(self) -> list[Fault]:
        faults, self.faults = self.faults, []
        return faults

    def process_table(self) -> list[ProcessInfo]:
        return [info for each in self.there.all for info in each.processes]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for each in self.there.all:
            with suppress(Exception):  # it may be gone, and Ray too
                each.call("close", timeout_s=CLOSING_S)
                each.kill()
        self.there.sender.close()
        if self._reservation is not None:
            self._reservation.release()
        self._leave()

    def _leave(self) -> None:
        if self._own:
            self.cluster.close()
