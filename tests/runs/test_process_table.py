"""What main knows of processes and nodes."""

from __future__ import annotations

import numpy as np

from manyhands.roles import counters
from manyhands.runs.process_table import ProcessTable
from manyhands.types import Fault, ProcessInfo


def test_processes_by_node_and_what_was_lost() -> None:
    counts = np.zeros((3, len(counters.FIELDS)))
    counts[0, counters.STEPS] = 70
    table = ProcessTable()
    running = [
        ProcessInfo("learner", 2, 0, 11, "a"),
        ProcessInfo("actor", 0, 1, 12, "b", is_near=False),
        ProcessInfo("actor", 1, 0, 13, "b", is_near=False),
    ]
    rows = table.look(running, counts)
    there = {"id": 0, "role": "actor", "pid": 12, "incarnation": 1, "node": "b"}
    assert rows[1] == {**there, "agent_steps": 70}
    assert table.near == [11]  # the others' pids are those of another machine
    assert table.by_node() == {"a": {"learner": 1}, "b": {"actor": 2}}
    table.note(Fault(0.0, running[1], "killed", "restarted as incarnation 2"))
    table.note(Fault(0.0, running[1], "silent", "replaced", loses_node=True))
    table.look(running[:1], counts)
    assert (table.restarts, table.nodes_lost) == (1, 1)


def test_without_nodes_no_node_is_named() -> None:
    table = ProcessTable()
    rows = table.look([ProcessInfo("worker", 0, 0, 5)], np.zeros((1, len(counters.FIELDS))))
    assert "node" not in rows[0]
    assert not table.by_node()
