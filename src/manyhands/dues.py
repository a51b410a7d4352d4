"""What a learner apart from actors is to learn: by the steps recorded, or as rollouts come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from manyhands.circles import Circle
from manyhands.counters import STEPS
from manyhands.memory.queue import Inbox
from manyhands.memory.replay import AT_ONCE, Replay
from manyhands.types import Demand, Source

Total = Callable[..., int]  # of a field, of all or of these seats


class Dues(Protocol):
    def paid(self, wanted: float) -> bool:
        """Whether all steps wanted are taken, and what they pay for is learned."""

    def steps(self) -> int:
        """The agent steps that count in this turn."""

    def drawn(self) -> int:
        """Batches, those included that others in this seat drew before, or that were forgiven."""


class OfReplay:
    """So many more steps are seen in a turn that nobody is kept waiting long."""

    def __init__(self, memory: Replay, demand: Demand, total: Total, circle: Circle) -> None:
        self._memory, self._demand, self._total, self._circle = memory, demand, total, circle

    def follow(self, drawn: int) -> None:
        """Goes on where another in this seat left off."""
        self._memory.go_on(self._recorded(), self._demand, drawn)

    def _recorded(self) -> int:
        return self._total(STEPS, self._circle.actors)

    def paid(self, wanted: float) -> bool:
        memory = self._memory
        return (
            self._total(STEPS) >= wanted
            and memory.steps_seen >= self._recorded()
            and not memory.owes(self._demand)
        )

    def steps(self) -> int:
        memory, demand, recorded = self._memory, self._demand, self._recorded()
        chunk = max(1, int(AT_ONCE * demand.steps_per_update))
        memory.steps_seen = min(recorded, max(memory.steps_seen, demand.warmup_steps) + chunk)
        memory.elsewhere = max(0, self._total(STEPS) - recorded)
        return memory.steps_seen + memory.elsewhere

    def drawn(self) -> int:
        return self._memory.updates_drawn + self._memory.updates_forgiven


class OfInbox:
    """What waits there is learned from; nothing is owed."""

    def __init__(self, memory: Inbox, total: Total, drawn_before: int) -> None:
        self._memory, self._total, self._before = memory, total, drawn_before

    def paid(self, wanted: float) -> bool:
        return self._total(STEPS) >= wanted

    def steps(self) -> int:
        return self._total(STEPS)

    def drawn(self) -> int:
        return self._before + self._memory.batches


def make(
    memory: Source, demand: object, total: Total, circle: Circle, *, drawn: int, follows: bool
) -> Dues:
    if isinstance(memory, Inbox):
        return OfInbox(memory, total, drawn)
    assert isinstance(memory, Replay)
    assert isinstance(demand, Demand)
    dues = OfReplay(memory, demand, total, circle)
    if follows:
        dues.follow(drawn)
    return dues
