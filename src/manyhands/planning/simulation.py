"""A run in simulated time: workers, or actors and learners, on the cores and links of a site.

The rules are those of `roles` and of the strategies; the seconds are measured. A worker steps, then
makes the updates that are due: draw, gradient, push, pull. Actors step while there is room ahead of
the learners, which draw what is due. A fixed number of gradients is simulated, whatever the number
of workers.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import simpy

from manyhands.planning.costs import Costs, SharingCosts, Site
from manyhands.planning.parameters import Learner, rules_of
from manyhands.planning.queues import NICE_WEIGHT, Floor, Node, Process, Waiting
from manyhands.roles.backoff import SHORTEST_NAP_S
from manyhands.types.communication import Sharing

GRADIENTS, EACH = 800, 3  # at least so many in all, and of every learner
WARM = 0.5  # of them before anything counts
A_LITTLE = 1e-9
SHIP_S = 0.05  # between two messages of rows to another node
SHIPMENTS = 4  # under way; then the actors of a node wait


@dataclass(frozen=True)
class Way:
    """One way of sharing the work, of which the number of workers or actors is varied."""

    name: str
    sharing: Sharing
    learners: int = 0  # apart from actors; 0: workers act and learn

    @property
    def apart(self) -> bool:
        return self.learners > 0

    def costs(self, costs: Costs) -> SharingCosts:
        """Not measured: as a plain optimizer's step."""
        return costs.sharing.get(self.name) or SharingCosts(push_s=costs.optimizer_s)


@dataclass(frozen=True)
class Outcome:
    agent_steps_per_s: float
    updates_per_s: float
    staleness: float
    busy: float  # share of all cores' time
    waiting: str = ""  # what limits it
    simulated: bool = True


def simulate(way: Way, costs: Costs, site: Site, workers: int, *, gradients: int = 0) -> Outcome:
    run = _Run(way, costs, site, workers)
    learners = way.learners or workers
    wanted = gradients or max(GRADIENTS, EACH * learners)
    first = run.until(int(WARM * wanted))
    return run.outcome(first, run.until(int((1 + WARM) * wanted)))


@dataclass(frozen=True)
class _Seen:
    now_s: float
    version: int
    applied: int
    stale: int
    busy_s: float


class _Run:
    def __init__(self, way: Way, costs: Costs, site: Site, workers: int) -> None:
        self._way, self._costs, self._floor = way, costs, Floor(costs, site)
        self._env, floor = self._floor.env, self._floor
        self._drawn = 0
        self._recorded = 0.0  # turns that the learners can see
        self._came = self._env.event()
        self._stopped = deque[simpy.Event]()  # actors that wait for room
        self._on_the_way = [0] * site.nodes  # turns recorded on a node, not yet with the learner
        homes = floor.nodes[:1] if way.apart else floor.nodes
        count = way.learners or workers
        learners = [
            Learner(index, Process(floor, homes[index * len(homes) // count]))
            for index in range(count)
        ]
        self._shared = rules_of(way.sharing)(floor, way.sharing, way.costs(costs), learners)
        if not way.apart:
            for learner in learners:
                self._env.process(self._worker(learner, workers))
            return
        self._workers = workers
        for learner in learners:
            self._env.process(self._learner(learner))
        for index in range(workers):
            self._env.process(self._actor(index % site.nodes))
        for number in range(1, site.nodes):
            self._env.process(self._shipping(number))
            self._env.process(self._publishing(floor.nodes[number]))

    # --- Roles ----------------------------------------------------------------------------------

    def _worker(self, me: Learner, workers: int) -> Waiting:
        """Every worker begins at another moment of its turn."""
        costs, due = self._costs, 0.0
        cycle_s = costs.turn_s + costs.wait_s + costs.learn_s * costs.updates_per_turn
        yield self._env.timeout(cycle_s * me.index / workers)
        turns = me.index % costs.rollout_turns if not self._way.sharing.in_step else 0
        while True:
            yield from self._turn(me.process)
            turns, due = turns + 1, due + costs.updates_per_turn
            if turns % costs.rollout_turns:
                continue
            while due >= 1 - A_LITTLE:
                due -= 1
                yield from self._gradient(me)

    def _turn(self, process: Process, more_s: float = 0.0) -> Waiting:
        costs, floor = self._costs, self._floor
        spread = floor.spread(costs.turn_spread)
        yield from process.work(spread * costs.turn_s + more_s)
        if costs.wait_s:
            yield from process.rest(costs.wait_s)

    def _gradient(self, me: Learner) -> Waiting:
        spread = self._floor.spread(self._costs.gradient_spread)
        yield from me.process.work(spread * self._costs.learn_s)
        yield from self._shared.push(me)
        yield from self._shared.pull(me)

    def _actor(self, number: int) -> Waiting:
        floor, costs = self._floor, self._costs
        process, turns = Process(floor, floor.nodes[number], NICE_WEIGHT), 0
        while True:
            while not self._has_room(number):
                room = self._env.event()
                self._stopped.append(room)
                yield from process.await_(room)
                yield from process.rest(SHORTEST_NAP_S)
            yield from self._turn(process, costs.apart.pull_s)
            turns += 1
            if turns % costs.rollout_turns:
                continue
            if number:
                self._on_the_way[number] += costs.rollout_turns
            else:
                self._record(costs.rollout_turns)

    def _has_room(self, number: int) -> bool:
        costs, apart = self._costs, self._costs.apart
        ahead = max(1.0 / costs.updates_per_turn, apart.ahead_turns)
        ahead += self._workers * apart.ahead_turns_each
        most = SHIPMENTS * max(costs.rollout_turns, SHIP_S / max(A_LITTLE, costs.turn_s))
        is_late = self._on_the_way[number] > most * self._floor.site.cores
        return self._recorded - self._drawn / costs.updates_per_turn <= ahead and not is_late

    def _record(self, turns: float) -> None:
        self._recorded += turns
        came, self._came = self._came, self._env.event()
        came.succeed()

    def _learner(self, me: Learner) -> Waiting:
        costs, updates = self._costs, 0
        per_draw = math.ceil(1 / costs.updates_per_turn)
        while True:
            while self._recorded * costs.updates_per_turn - self._drawn < 1 - A_LITTLE:
                yield from me.process.await_(self._came)
                yield from me.process.rest(SHORTEST_NAP_S)
            self._drawn += 1
            yield from self._gradient(me)
            for _ in range(min(per_draw, len(self._stopped))):
                self._stopped.popleft().succeed()
            updates += 1
            if me.index == 0:
                yield from me.process.work(costs.apart.publish_s)

    # --- Between nodes --------------------------------------------------------------------------

    def _shipping(self, number: int) -> Waiting:
        floor = self._floor
        while True:
            yield self._env.timeout(SHIP_S)
            turns, self._on_the_way[number] = self._on_the_way[number], 0
            if turns:
                size = turns * self._costs.row_bytes
                yield from floor.send(floor.nodes[number], floor.nodes[0], size)
                self._record(turns)

    def _publishing(self, node: Node) -> Waiting:
        """One message at a time, always with the newest weights."""
        floor, sent = self._floor, 0
        while True:
            if self._shared.version - sent < self._costs.apart.publish_every:
                yield self._shared.changed
                continue
            sent = self._shared.version
            yield from floor.send(floor.nodes[0], node, self._costs.vector_bytes)

    # --- What it did ----------------------------------------------------------------------------

    def until(self, applied: int) -> _Seen:
        """Runs until so many gradients were applied."""
        env, shared = self._env, self._shared
        while shared.applied < applied:
            env.step()
        busy_s = sum(node.busy_s for node in self._floor.nodes)
        return _Seen(env.now, shared.version, shared.applied, shared.stale, busy_s)

    def outcome(self, first: _Seen, last: _Seen) -> Outcome:
        seconds = last.now_s - first.now_s
        cores = self._floor.site.cores * self._floor.site.nodes
        turns = (last.applied - first.applied) / self._costs.updates_per_turn
        return Outcome(
            agent_steps_per_s=turns * self._costs.lanes / seconds,
            updates_per_s=(last.version - first.version) / seconds,
            staleness=(last.stale - first.stale) / max(1, last.applied - first.applied),
            busy=(last.busy_s - first.busy_s) / (cores * seconds),
        )
