"""Cores, links and locks that processes wait for, in simulated time."""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from typing import Any

import simpy

from manyhands.planning.costs import Costs, Site

Waiting = Generator[simpy.Event, Any, Any]
NICE_WEIGHT = 1024 / 335  # of an actor: Linux counts its time so many times, at nice 5
TINY_S = 1e-9


class Node:
    """One machine: its cores, and a link in each direction."""

    def __init__(self, env: simpy.Environment, cores: int) -> None:
        self.cores = simpy.PriorityResource(env, cores)
        self.up, self.down = simpy.Resource(env), simpy.Resource(env)
        self.busy_s = 0.0
        self.least_s = 0.0  # how much of a core the last to get one had had


class Process:
    """What wants a core. As on Linux the one that had least goes first, and keeps it for a slice.

    It keeps its core between two pieces of work, and gives it up where it must wait.
    """

    def __init__(self, floor: Floor, node: Node, weight: float = 1.0) -> None:
        self.node, self._floor, self._weight = node, floor, weight
        self._had_s = self._slice_s = 0.0
        self._core: Any = None

    def work(self, seconds: float) -> Waiting:
        costs, env, node = self._floor.costs, self._floor.env, self.node
        while seconds > TINY_S:
            if self._core is None:
                yield from self._get_core()
            slower = self._floor.slower(node.cores.count)
            crowded = node.cores.count == node.cores.capacity
            piece = min(seconds * slower, self._slice_s if crowded else math.inf)
            yield env.timeout(piece)
            self._had_s += piece * self._weight
            node.busy_s += piece
            seconds -= piece / slower
            self._slice_s -= piece
            if self._slice_s <= TINY_S:
                self._slice_s = costs.slice_s
                if node.cores.queue:
                    self.sleep()

    def _get_core(self) -> Waiting:
        node, costs = self.node, self._floor.costs
        self._had_s = max(self._had_s, node.least_s - costs.slice_s)  # sleep earns no more
        self._core = node.cores.request(int(1e9 * self._had_s))
        yield self._core
        node.least_s = max(node.least_s, self._had_s)
        self._slice_s = costs.slice_s

    def sleep(self) -> None:
        """Gives up its core."""
        if self._core is not None:
            self.node.cores.release(self._core)
            self._core = None

    def await_(self, event: simpy.Event) -> Waiting:
        """Waits without a core; nothing if it has happened already."""
        if event.processed or (event.triggered and not isinstance(event, simpy.Timeout)):
            return event.value
        self.sleep()
        value = yield event
        yield self._floor.env.timeout(self._floor.costs.wake_s)
        return value

    def rest(self, seconds: float) -> Waiting:
        self.sleep()
        yield self._floor.env.timeout(seconds + self._floor.costs.wake_s)


class Floor:
    """Where a run is simulated: all nodes, one clock, one source of chance."""

    def __init__(self, costs: Costs, site: Site, seed: int = 1) -> None:
        self.costs, self.site, self.env = costs, site, simpy.Environment()
        self.chance = random.Random(seed)
        self.nodes = [Node(self.env, site.cores) for _ in range(site.nodes)]

    def node_of(self, index: int) -> Node:
        return self.nodes[index % len(self.nodes)]

    def slower(self, busy: int) -> float:
        """Cores share memory and caches. Beyond as many as were measured nothing is known."""
        others = self.costs.cores - 1
        if not others:
            return 1.0
        return 1.0 + (self.costs.contention - 1.0) * min(1.0, (busy - 1) / others)

    def send(self, source: Node, target: Node, size: int) -> Waiting:
        if source is target:
            return
        with source.up.request() as going, target.down.request() as coming:
            yield going & coming
            yield self.env.timeout(self.site.seconds(size))
        yield self.env.timeout(self.site.call_s)

    def spread(self, values: tuple[float, ...]) -> float:
        return values[0] if len(values) == 1 else self.chance.choice(values)


class Lock:
    def __init__(self, floor: Floor) -> None:
        self._lock = simpy.Resource(floor.env)

    def hold(self, process: Process, work: Waiting) -> Waiting:
        """Does this work while it holds the lock."""
        with self._lock.request() as asked:
            yield from process.await_(asked)
            yield from work


class Barrier:
    """The last to arrive lets all go."""

    def __init__(self, floor: Floor, members: int) -> None:
        self._env, self._members = floor.env, members
        self._arrived, self._gate = 0, floor.env.event()

    def meet(self, process: Process, between_s: float = 0.0) -> Waiting:
        """`between_s`: from the last arrival to the release."""
        self._arrived += 1
        if self._arrived < self._members:
            yield from process.await_(self._gate)
            return
        gate, self._gate, self._arrived = self._gate, self._env.event(), 0
        if between_s:
            yield from process.rest(between_s)
        gate.succeed()
