"""What a run needs of the machines that it uses, told to a backend before anything is shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessNeed:
    """Some processes of one role."""

    role: str
    count: int
    anywhere: bool = False  # each may be on a node of its own; otherwise they share one node
    memory_bytes: int = 0  # that each takes on another node than main's


@dataclass(frozen=True, slots=True)
class Needs:
    processes: tuple[ProcessNeed, ...]  # in the order of their ranks
    hosted: tuple[ProcessNeed, ...] = ()
    together: str = "they share memory"  # why processes without `anywhere` share one node
    memory_bytes: int = 0  # of what the processes of one node share, such as the replay
    message_bytes: int = 0  # of the longest vector that goes from node to node
    libraries: tuple[str, ...] = ()  # whose versions must be the same on all nodes
    trial: Callable[[], str] | None = None  # why a machine cannot do the work; empty if it can

    @property
    def anywhere(self) -> tuple[bool, ...]:
        """By rank."""
        return tuple(need.anywhere for need in self.processes for _ in range(need.count))
