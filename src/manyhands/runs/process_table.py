"""Which processes run and on which node, and how many processes and nodes were lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from manyhands.roles import counters
from manyhands.types import Array, Fault, ProcessInfo

ACTING = ("worker", "actor")
INTERNAL = ("index", "is_near")  # not in status.json


class ProcessTable:
    def __init__(self) -> None:
        self.restarts, self.nodes_lost = 0, 0
        self.rows: list[dict[str, Any]] = []  # as status.json has them
        self.near: list[int] = []  # pids on main's machine

    def note(self, fault: Fault) -> None:
        self.restarts += fault.action.startswith("restarted")
        self.nodes_lost += fault.loses_node

    def look(self, running: Sequence[ProcessInfo], counts: Array) -> list[dict[str, Any]]:
        """The rows. `running`: the processes now. `counts`: the counters by rank."""
        self.rows = [_row(process, counts) for process in running]
        self.near = [process.pid for process in running if process.is_near]
        return self.rows

    def by_node(self) -> dict[str, dict[str, int]]:
        """How many processes of each role every node runs now."""
        found: dict[str, dict[str, int]] = {}
        for row in self.rows:
            if "node" in row:
                roles = found.setdefault(row["node"], {})
                roles[row["role"]] = roles.get(row["role"], 0) + 1
        return found


def _row(process: ProcessInfo, counts: Array) -> dict[str, Any]:
    steps = int(counts[process.index, counters.STEPS]) if process.role in ACTING else 0
    told = {"id": process.index, **asdict(process), "agent_steps": steps}
    return {k: v for k, v in told.items() if k not in INTERNAL and (k != "node" or v)}
