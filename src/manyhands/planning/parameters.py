"""The rules of a pull and a push, one class for each way in which learners may wait."""

from __future__ import annotations

from typing import Any

import simpy

from manyhands.planning.costs import SharingCosts
from manyhands.planning.queues import Barrier, Floor, Lock, Node, Process, Waiting
from manyhands.types.communication import Sharing

DEPTH = 2  # pushes of one learner that a shard may have waiting
REQUEST, GRADIENT = "request", "gradient"


class Learner:
    """One learner's place, and the version it computes with."""

    def __init__(self, index: int, process: Process) -> None:
        self.index, self.process, self.node = index, process, process.node
        self.seen = self.pulls = self.pushes = 0


class Shared:
    """Parameters without any exclusion: a pull and a push are work, and nothing waits."""

    def __init__(
        self, floor: Floor, sharing: Sharing, costs: SharingCosts, learners: list[Learner]
    ) -> None:
        self.floor, self.sharing, self.costs, self.learners = floor, sharing, costs, learners
        self.version = self.applied = self.stale = 0
        self.changed = floor.env.event()  # at the next update
        size = sharing.island or len(learners)
        self._island_of = [learner.index // size for learner in learners]
        self._versions = [0] * len(learners)  # of every island

    def pull(self, me: Learner) -> Waiting:
        me.pulls += 1
        if me.pulls % self.sharing.pull_every == 0:
            yield from self.fetch(me)

    def push(self, me: Learner) -> Waiting:
        me.pushes += 1
        if me.pushes % self.sharing.push_every == 0:
            yield from self.hand_over(me)
        else:
            self.count(0)

    def fetch(self, me: Learner) -> Waiting:
        yield from me.process.work(self.costs.pull_s)
        me.seen = self._versions[self._island_of[me.index]]

    def hand_over(self, me: Learner) -> Waiting:
        yield from me.process.work(self.costs.push_s)
        island = self._island_of[me.index]
        self.apply(self._versions[island] - me.seen)
        self._versions[island] += 1

    def apply(self, staleness: int) -> None:
        self.version += 1
        self.count(staleness)
        changed, self.changed = self.changed, self.floor.env.event()
        changed.succeed()

    def count(self, staleness: int) -> None:
        self.applied += 1
        self.stale += staleness


class Locked(Shared):
    """One lock around every pull and push."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lock = Lock(self.floor)

    def fetch(self, me: Learner) -> Waiting:
        yield from self._lock.hold(me.process, super().fetch(me))

    def hand_over(self, me: Learner) -> Waiting:
        yield from self._lock.hold(me.process, super().hand_over(me))


class Paired(Shared):
    """A replica and a lock for each learner. A push averages two replicas, then steps its own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._locks = [Lock(self.floor) for _ in self.learners]
        self._met = [0] * len(self.learners)  # how often others averaged with this replica
        self._away: list[simpy.Event] = [
            self.floor.env.timeout(0) for _ in self.learners
        ]  # meetings on other nodes

    def fetch(self, me: Learner) -> Waiting:
        yield from self._locks[me.index].hold(me.process, super().fetch(me))
        me.seen = self._met[me.index]

    def hand_over(self, me: Learner) -> Waiting:
        step_s = min(self.floor.costs.optimizer_s, self.costs.push_s)
        if len(self.learners) > 1:
            yield from self._meet(me, self.costs.push_s - step_s)
        yield from self._locks[me.index].hold(me.process, me.process.work(step_s))
        self.apply(self._met[me.index] - me.seen)

    def _meet(self, me: Learner, seconds: float) -> Waiting:
        nodes = len(self.floor.nodes)
        away = self.floor.chance.choice((1, -1))
        other = self.learners[(me.index + away) % len(self.learners)]
        if nodes == 1 or other.node is me.node:
            low, high = sorted((me.index, other.index))
            inside = self._locks[high].hold(me.process, me.process.work(seconds))
            yield from self._locks[low].hold(me.process, inside)
            self._met[other.index] += 1
        else:  # one meeting at a time, without a lock
            yield from me.process.await_(self._away[me.index])
            yield from me.process.work(seconds)
            self._away[me.index] = self.floor.env.process(self._abroad(me, other))

    def _abroad(self, me: Learner, other: Learner) -> Waiting:
        size = self.floor.costs.vector_bytes
        yield from self.floor.send(me.node, other.node, size)
        self._met[other.index] += 1
        yield from self.floor.send(other.node, me.node, size)


class InStep(Shared):
    """Every push waits for all: once until all have arrived, once until all slices are averaged."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        learners, nodes = len(self.learners), len(self.floor.nodes)
        self._arrived, self._averaged = Barrier(self.floor, learners), Barrier(self.floor, learners)
        peers = max(1, learners // nodes) - 1
        self._third_s = (self.costs.push_s + peers * self.costs.peer_s) / 3
        self._pushed = 0

    def hand_over(self, me: Learner) -> Waiting:
        for barrier, between_s in ((self._arrived, self._exchange_s()), (self._averaged, 0.0)):
            yield from me.process.work(self._third_s)
            yield from barrier.meet(me.process, between_s)
        yield from me.process.work(self._third_s)
        self._pushed += 1
        if self._pushed % len(self.learners):
            self.count(0)
        else:
            self.apply(0)

    def _exchange_s(self) -> float:
        """Between nodes every one sends and receives all slices but its own, twice."""
        site, nodes = self.floor.site, len(self.floor.nodes)
        if nodes == 1:
            return 0.0
        share_s = site.seconds(self.floor.costs.vector_bytes) * (nodes - 1) / nodes
        return 2 * (share_s + site.call_s)


class Served(Shared):
    """Shards apply pushes in the order of arrival, each in its own process."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        env, shards = self.floor.env, self.sharing.shards
        self._queues = [simpy.Store(env) for _ in range(shards)]
        self._home = [self.floor.node_of(shard) for shard in range(shards)]
        self._room = [[simpy.Resource(env, DEPTH) for _ in range(shards)] for _ in self.learners]
        self._known = {id(node): 0 for node in self.floor.nodes}  # the version read on each node
        self._serve_s = self.costs.serve_s / shards
        self._size = self.floor.costs.vector_bytes // shards
        for shard in range(shards):
            env.process(self._shard(shard))
        if not self.sharing.asks:
            for node in self.floor.nodes:
                if node is not self._home[0]:
                    env.process(self._mirror(node))

    def fetch(self, me: Learner) -> Waiting:
        if self.sharing.asks:
            answers = [self.floor.env.event() for _ in self._queues]
            for shard, answer in enumerate(answers):
                self._queues[shard].put((REQUEST, me, answer))
            versions = yield from me.process.await_(self.floor.env.all_of(answers))
            seen = min(versions.values())
        elif me.node is self._home[0]:
            seen = self.version
        else:
            seen = self._known[id(me.node)]
        yield from me.process.work(self.costs.pull_s)
        me.seen = seen

    def hand_over(self, me: Learner) -> Waiting:
        yield from me.process.work(self.costs.push_s)
        for shard in range(self.sharing.shards):
            room = self._room[me.index][shard].request()
            yield from me.process.await_(room)
            if me.node is self._home[shard]:
                self._queues[shard].put((GRADIENT, me, (me.seen, room)))
            else:
                self.floor.env.process(self._deliver(shard, me, room))

    def _deliver(self, shard: int, me: Learner, room: Any) -> Waiting:
        seen = me.seen
        yield from self.floor.send(me.node, self._home[shard], self._size)
        self._queues[shard].put((GRADIENT, me, (seen, room)))

    def _shard(self, shard: int) -> Waiting:
        queue, home = self._queues[shard], self._home[shard]
        process = Process(self.floor, home)
        while True:
            what, learner, told = yield from process.await_(queue.get())
            if what == REQUEST:
                self.floor.env.process(self._answer(home, learner, told))
                continue
            yield from process.work(self._serve_s)
            seen, room = told
            self._room[learner.index][shard].release(room)
            if shard == 0:
                self.apply(self.version - seen)

    def _answer(self, home: Node, learner: Learner, answer: simpy.Event) -> Waiting:
        version = self.version
        yield from self.floor.send(home, learner.node, self._size)
        answer.succeed(version)

    def _mirror(self, node: Node) -> Waiting:
        """A node reads parameters once for all its workers, as fast as the links allow."""
        while True:
            if self._known[id(node)] == self.version:
                yield self.changed
            version = self.version
            yield from self.floor.send(self._home[0], node, self.floor.costs.vector_bytes)
            self._known[id(node)] = version


def rules_of(sharing: Sharing) -> type[Shared]:
    """The only place that chooses by what a strategy says of itself."""
    if sharing.in_step:
        return InStep
    if sharing.shards:
        return Served
    return {"nothing": Shared, "vector": Locked, "pair": Paired}[sharing.locks]
