"""Throughput and staleness of every way, for 1 to 10,000 workers, and which is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from manyhands.planning import formula
from manyhands.planning.costs import Costs, Site
from manyhands.planning.simulation import Outcome, Way, simulate

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1_000, 3_000, 10_000)
MOST_SIMULATED = 256
MOST_IF_DIFFERENT = 1_000  # where the formula differs there
AGREES = 0.10  # the formula with the simulation, where both are known
AS_GOOD = 0.97  # of the best: the fewest workers that reach it are advised


@dataclass(frozen=True)
class Anchor:
    """Where the simulation ends: what it gives there, as a part of what the formula gives."""

    workers: int
    outcome: Outcome
    ratio: float
    age: float  # of the staleness

    def scaled(self, found: Outcome) -> Outcome:
        """So that the curve has no step where the formula begins."""
        return replace(
            found,
            agent_steps_per_s=self.ratio * found.agent_steps_per_s,
            updates_per_s=self.ratio * found.updates_per_s,
            staleness=self.age * found.staleness,
        )


@dataclass(frozen=True)
class Curve:
    """One way at one site."""

    way: Way
    site: Site
    outcomes: Mapping[int, Outcome]  # by number of workers, or actors
    anchor: Anchor | None  # beyond it the formula is used; None: nowhere

    def best(self) -> int:
        rates = {n: found.agent_steps_per_s for n, found in self.outcomes.items()}
        return min(n for n, rate in rates.items() if rate >= AS_GOOD * max(rates.values()))


def curve(way: Way, costs: Costs, site: Site, counts: tuple[int, ...] = COUNTS) -> Curve:
    """Simulates up to some hundred workers, and more where the formula differs there."""
    found = {n: simulate(way, costs, site, n) for n in counts if n <= MOST_SIMULATED}
    far, anchor = [n for n in counts if n > MOST_SIMULATED], None
    if far:
        anchor = _anchor(way, costs, site, MOST_SIMULATED)
        if abs(anchor.ratio - 1) > AGREES:
            anchor = _anchor(way, costs, site, MOST_IF_DIFFERENT)
        if anchor.workers in counts:
            found[anchor.workers] = anchor.outcome
        for n in far:
            found.setdefault(n, anchor.scaled(formula.outcome(way, costs, site, n)))
    named = {n: _named(way, costs, site, n, found[n]) for n in sorted(found)}
    return Curve(way, site, named, anchor)


def _anchor(way: Way, costs: Costs, site: Site, workers: int) -> Anchor:
    outcome, given = (f(way, costs, site, workers) for f in (simulate, formula.outcome))
    ratio = outcome.agent_steps_per_s / given.agent_steps_per_s
    age = outcome.staleness / given.staleness if given.staleness else 0.0
    return Anchor(workers, outcome, ratio, age)


def _named(way: Way, costs: Costs, site: Site, workers: int, found: Outcome) -> Outcome:
    return replace(found, waiting=formula.bottleneck(way, costs, site, workers, found))


def curves(
    ways: list[Way], costs: Costs, site: Site, counts: tuple[int, ...] = COUNTS
) -> list[Curve]:
    """Of the ways that work at the site: memory is not shared between nodes."""
    fits = [way for way in ways if site.nodes == 1 or way.apart or way.sharing.sends != "nothing"]
    return [curve(way, costs, site, counts) for way in fits]


@dataclass(frozen=True)
class Best:
    way: Way
    site: Site
    workers: int
    outcome: Outcome
    times: float  # as fast as one worker

    def __str__(self) -> str:
        plural = "s" * (self.workers > 1)
        if not self.way.apart:
            return f"{self.workers:,} worker{plural} {self.way.name}"
        learners = f"{self.way.learners} learner{'s' * (self.way.learners > 1)}"
        return f"{self.workers:,} actor{plural} and {learners}"


def best(found: list[Curve], one: float) -> Best:
    """`one`: agent steps per second of one worker."""
    candidates = [Best(c.way, c.site, c.best(), c.outcomes[c.best()], 0.0) for c in found]
    chosen = max(candidates, key=lambda b: b.outcome.agent_steps_per_s)
    return replace(chosen, times=chosen.outcome.agent_steps_per_s / one)


def one_worker(costs: Costs) -> float:
    """Agent steps per second of one worker that shares nothing."""
    turns = costs.turn_s + costs.wait_s
    gradients = costs.updates_per_turn * (costs.learn_s + costs.optimizer_s)
    return costs.lanes / (turns + gradients)
