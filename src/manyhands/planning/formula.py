"""The closed formula for very many workers: mean value analysis of a closed queueing network.

Every worker is a customer that goes round: it waits for its environments, uses a core, and queues
for what is exclusive. Reiser and Lavenberg (1980) give the throughput of n customers from that of
n - 1; a station of several servers is one fast server and a delay (Seidmann et al. 1987). Service
times there are exponential, ours nearly constant, so the simulation decides where it is near.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from manyhands.planning.costs import Costs, Site
from manyhands.planning.parameters import DEPTH
from manyhands.planning.simulation import Outcome, Way

ENVIRONMENTS, CORES, LOCK, SHARDS, LINK, LEARNERS, SLOWEST = (
    "environments", "cores", "lock", "shards", "link", "learners", "slowest worker",
)  # fmt: skip
SATURATED = 0.85  # of its capacity in use


class Station(NamedTuple):
    name: str
    seconds: float  # of every gradient
    servers: float = 1


def outcome(way: Way, costs: Costs, site: Site, workers: int) -> Outcome:
    gradients_per_s = throughput(way, costs, site, workers)
    learners = way.learners or workers
    total = total_core_s(way, costs, site, workers)
    return Outcome(
        agent_steps_per_s=gradients_per_s / costs.updates_per_turn * costs.lanes,
        updates_per_s=gradients_per_s / (learners if way.sharing.in_step else 1),
        staleness=_staleness(way, costs, workers, gradients_per_s),
        busy=min(1.0, gradients_per_s * total / (site.cores * site.nodes)),
        simulated=False,
    )


def throughput(way: Way, costs: Costs, site: Site, workers: int) -> float:
    """Gradients per second."""
    delay_s = costs.wait_s / costs.updates_per_turn
    if way.sharing.in_step and not way.apart:
        return workers / _round_s(way, costs, site, workers)
    queues = list(stations(way, costs, site, workers))
    most = min(station.servers / station.seconds for station in queues if station.seconds)
    cores = site.cores * site.nodes / total_core_s(way, costs, site, workers)
    return min(_mean_value(queues, delay_s, workers), most, cores)


def stations(way: Way, costs: Costs, site: Site, workers: int) -> Iterator[Station]:
    """What all workers of a way queue for."""
    sharing, shared = way.sharing, way.costs(costs)
    own_s = shared.pull_s + shared.push_s
    locked_s = own_s if sharing.locks == "vector" else 0.0
    total_s = total_core_s(way, costs, site, workers)
    if way.apart:
        learn_s = costs.learn_s + own_s + costs.apart.publish_s
        yield Station(LEARNERS, learn_s, way.learners)
        total_s -= learn_s
    yield Station(CORES, total_s - locked_s, site.cores * site.nodes)
    yield Station(LOCK, locked_s)
    if sharing.shards:
        yield Station(SHARDS, shared.serve_s, sharing.shards)
    yield Station(LINK, _link_s(way, costs, site))


def total_core_s(way: Way, costs: Costs, site: Site, workers: int) -> float:
    """Seconds of cores for every gradient, with all of them busy."""
    shared, turns = way.costs(costs), 1 / costs.updates_per_turn
    total = turns * costs.turn_s + costs.learn_s + shared.pull_s + shared.push_s + shared.serve_s
    if way.sharing.in_step:
        total += shared.peer_s * (max(1, workers // site.nodes) - 1)
    if way.apart:
        total += turns * costs.apart.pull_s + costs.apart.publish_s
    return total * (costs.contention if workers > 1 or way.apart else 1.0)


def _link_s(way: Way, costs: Costs, site: Site) -> float:
    """Of the busiest link, for every gradient."""
    if site.nodes == 1:
        return 0.0
    elsewhere = (site.nodes - 1) / site.nodes
    if way.apart:
        return elsewhere * site.seconds(costs.row_bytes) / costs.updates_per_turn
    if way.sharing.sends == "shards":
        return elsewhere * site.seconds(costs.vector_bytes)
    return 0.0


def _mean_value(queues: list[Station], delay_s: float, workers: int) -> float:
    fast = [station.seconds / station.servers for station in queues]
    delay_s += sum(s.seconds * (1 - 1 / s.servers) for s in queues if s.servers > 1)
    waiting, rate = [0.0] * len(fast), 0.0
    for customers in range(1, workers + 1):
        stays = [seconds * (1 + n) for seconds, n in zip(fast, waiting, strict=True)]
        rate = customers / (delay_s + sum(stays))
        waiting = [rate * stay for stay in stays]
    return rate


def _round_s(way: Way, costs: Costs, site: Site, workers: int) -> float:
    """From one common update to the next. The slowest of all decides."""
    members = -(-workers // site.nodes)
    core_s = total_core_s(way, costs, site, workers)
    slowest = max(costs.gradient_spread) if workers > len(costs.gradient_spread) else 1.0
    own_s = costs.wait_s / costs.updates_per_turn + slowest * core_s
    crowded_s = core_s * members / site.cores
    if site.nodes == 1:
        return max(own_s, crowded_s)
    sent_s = site.seconds(costs.vector_bytes) * (site.nodes - 1) / site.nodes
    return max(own_s, crowded_s) + 2 * (sent_s + site.call_s)


def _staleness(way: Way, costs: Costs, workers: int, rate: float) -> float:
    """A learner pulls right after it pushes. So the others push once each in between, whatever
    their speed (with equal speeds); a shard that is full has their pushes waiting too.
    """
    learners, sharing = way.learners or workers, way.sharing
    if sharing.in_step or learners == 1:
        return 0.0
    if sharing.locks == "pair":
        return 1.0
    serve_s = way.costs(costs).serve_s
    if sharing.shards and not sharing.asks and serve_s * rate > SATURATED * sharing.shards:
        return DEPTH * learners + learners - 1.0
    return (min(sharing.island, learners) or learners) - 1.0


def bottleneck(way: Way, costs: Costs, site: Site, workers: int, found: Outcome) -> str:
    """What is used up, or what the time goes to."""
    if found.busy > SATURATED:
        return CORES
    rate = found.agent_steps_per_s / costs.lanes * costs.updates_per_turn
    used = {s.name: rate * s.seconds / s.servers for s in stations(way, costs, site, workers)}
    most = max(used, key=lambda name: used[name])
    if used[most] > SATURATED:
        return most
    if way.sharing.in_step and workers > 1:
        return SLOWEST
    return ENVIRONMENTS if costs.wait_s > costs.turn_s + costs.learn_s else "workers"
