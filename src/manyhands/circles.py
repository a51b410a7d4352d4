"""Circles: which learners draw from which actors' experience, and how far ahead those may run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from manyhands.config import Plan
from manyhands.types import Demand


def among(demand: Demand, learners: int) -> Demand:
    """One learner's share of the updates that all steps pay for."""
    return replace(demand, steps_per_update=demand.steps_per_update * learners)


class Circle(NamedTuple):
    """Seats of learners, and of the actors whose experience they draw from."""

    actors: range
    learners: range
    everyone: int  # who acts, of all circles

    def share_of(self, demand: Demand) -> Demand:
        """Of the warm-up, which is a total. Updates are paid for by steps, here by its own."""
        return replace(demand, warmup_steps=demand.warmup_steps * len(self.actors) // self.everyone)


def circles(plan: Plan) -> list[Circle]:
    """One of all; or of each learner with actors of its own, where its memory is local."""
    actors, learners = plan.top.actors, plan.top.learners
    many = learners if plan["memory"].scope == "local" else 1
    cuts = [-(-actors * n // many) for n in range(many + 1)]
    each = learners // many
    return [
        Circle(range(*cuts[n : n + 2]), range(actors + each * n, actors + each * (n + 1)), actors)
        for n in range(many)
    ]


class Pace:
    """Keeps actors from running away: learners draw for every step, at their own speed."""

    def __init__(
        self,
        steps: Callable[[range], int],
        drawn: Callable[[range], int],
        circle: Circle,
        demand: Demand,
        most: int,
    ) -> None:
        """`steps` that these seats recorded, `drawn` by those; `most` that actors may be ahead."""
        self._steps, self._drawn, self._circle, self._most = steps, drawn, circle, most
        self._demand = circle.share_of(demand)

    def has_room(self) -> bool:
        drawn = self._drawn(self._circle.learners)
        recorded = self._steps(self._circle.actors) - self._demand.warmup_steps
        return bool(recorded - drawn * self._demand.steps_per_update <= self._most)
