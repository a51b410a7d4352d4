"""Pacing: how many updates are due to each learner, and how far ahead actors may run.

A `Pairing` says which learners draw from which actors. A `Schedule` says what a learner in a
separate process does in a turn. `Pace` limits how far actors run ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from manyhands.config.plans import Plan
from manyhands.memory.queue import Inbox
from manyhands.memory.replay import AT_ONCE, Replay
from manyhands.roles.counters import DRAWN, STEPS, UPDATES
from manyhands.types import AnyDemand, Array, Demand, QueueDemand, Source

Total = Callable[..., int]  # sum of a counter over all ranks, or over these


def learner_share(demand: Demand, learners: int) -> Demand:
    """One learner's share of the updates that are due for all steps."""
    return replace(demand, steps_per_update=demand.steps_per_update * learners)


class Pairing(NamedTuple):
    """Ranks of learners, and of the actors that record what they draw from."""

    actors: range
    learners: range
    all_actors: int  # of all pairings

    def share_of(self, demand: Demand) -> Demand:
        """With its share of the warm-up, which is a total. Updates are due for its own steps."""
        share = demand.warmup_steps * len(self.actors) // self.all_actors
        return replace(demand, warmup_steps=share)

    def updates_due(self, demand: Demand, recorded: int) -> int:
        """Of each learner, after its actors recorded so many steps. Negative in the warm-up."""
        return learner_share(self.share_of(demand), len(self.learners)).updates_due(recorded)


def pairings(plan: Plan) -> list[Pairing]:
    """One pairing of all; with local memories one for each learner, with its own actors."""
    actors, learners = plan.top.actors, plan.top.learners
    count = learners if plan.memory.scope == "local" else 1
    cuts = [-(-actors * n // count) for n in range(count + 1)]
    each = learners // count
    return [
        Pairing(range(*cuts[n : n + 2]), range(actors + each * n, actors + each * (n + 1)), actors)
        for n in range(count)
    ]


def samples_per_insert(demand: AnyDemand, rows: Array, lanes: int) -> dict[str, float]:
    """How often each recorded step was drawn, by the counters of all ranks."""
    warmup_steps = demand.warmup_steps if isinstance(demand, Demand) else 0
    recorded = int(rows[:, STEPS].sum()) - warmup_steps
    if recorded <= 0:
        return {}
    if isinstance(demand, Demand):
        drawn = rows[:, UPDATES].sum() * demand.batch_size
    else:
        assert isinstance(demand, QueueDemand)  # other algorithms have no actors apart
        drawn = rows[:, DRAWN].sum() * demand.batch_steps(lanes)
    return {"charts/samples_per_insert": float(drawn / recorded)}


class Pace:
    """Makes actors wait when they are too far ahead of what the learners have drawn."""

    def __init__(
        self,
        steps: Callable[[range], int],
        drawn: Callable[[range], int],
        pairing: Pairing,
        demand: Demand,
        ahead_steps: int,
    ) -> None:
        """`steps` and `drawn` count what some ranks recorded and drew. `ahead_steps`: the limit."""
        self._steps, self._drawn, self._pairing = steps, drawn, pairing
        self._ahead_steps = ahead_steps
        self._demand = pairing.share_of(demand)

    def has_room(self) -> bool:
        drawn = self._drawn(self._pairing.learners)
        recorded = self._steps(self._pairing.actors)
        return recorded <= self._demand.steps_for(drawn) + self._ahead_steps


class Schedule(Protocol):
    def finished(self, step_limit: float) -> bool:
        """Whether the actors have taken all steps and the updates due for them are made."""

    def advance(self) -> int:
        """Begins a turn; returns the agent steps that count in it."""

    def drawn(self) -> int:
        """Batches drawn or skipped by all incarnations of this rank."""


class ReplaySchedule:
    """A turn counts a limited number of new steps, so that other processes do not wait long."""

    def __init__(self, memory: Replay, demand: Demand, total: Total, pairing: Pairing) -> None:
        self._memory, self._demand, self._total, self._pairing = memory, demand, total, pairing

    def resume_after(self, drawn: int) -> None:
        """Continues after the `drawn` batches of earlier incarnations."""
        self._memory.resume_from(self._recorded(), self._demand, drawn)

    def _recorded(self) -> int:
        return self._total(STEPS, self._pairing.actors)

    def finished(self, step_limit: float) -> bool:
        memory = self._memory
        return (
            self._total(STEPS) >= step_limit
            and memory.steps_seen >= self._recorded()
            and not memory.has_due(self._demand)
        )

    def advance(self) -> int:
        memory, demand, recorded = self._memory, self._demand, self._recorded()
        chunk = max(1, int(AT_ONCE * demand.steps_per_update))
        seen = min(recorded, max(memory.steps_seen, demand.warmup_steps) + chunk)
        elsewhere = max(0, self._total(STEPS) - recorded)
        memory.count_steps(seen=seen, elsewhere=elsewhere)
        return seen + elsewhere

    def drawn(self) -> int:
        return self._memory.updates_drawn + self._memory.updates_skipped


class QueueSchedule:
    """Learns from all rollouts that wait. No updates are due for steps."""

    def __init__(self, memory: Inbox, total: Total, drawn_before: int) -> None:
        self._memory, self._total, self._before = memory, total, drawn_before

    def finished(self, step_limit: float) -> bool:
        return self._total(STEPS) >= step_limit

    def advance(self) -> int:
        return self._total(STEPS)

    def drawn(self) -> int:
        return self._before + self._memory.batches


def schedule_for(
    memory: Source, demand: object, total: Total, pairing: Pairing, *, drawn: int, resumes: bool
) -> Schedule:
    if isinstance(memory, Inbox):
        return QueueSchedule(memory, total, drawn)
    assert isinstance(memory, Replay)
    assert isinstance(demand, Demand)
    schedule = ReplaySchedule(memory, demand, total, pairing)
    if resumes:
        schedule.resume_after(drawn)
    return schedule
