"""How the processes of a run spent their time, by role and part."""

from __future__ import annotations

from collections.abc import Mapping

from manyhands.roles import counters
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.types import Array

Split = dict[str, dict[str, float]]  # seconds, by role and part


def split_of(
    rows: Array, actors: int, elapsed_s: float, before: Mapping[str, Mapping[str, float]]
) -> Split:
    """From the counters of all ranks. Time that no process counted is "other".

    `actors`: the first ranks, if actors are apart from learners. `before`: seconds to add.
    """
    roles = {"actor": rows[:actors], "learner": rows[actors:]} if actors else {"worker": rows}
    split: Split = {role: dict(parts) for role, parts in before.items()}
    for role, own in roles.items():
        spent, earlier = _spent(own, elapsed_s), split.get(role, {})
        split[role] = {part: earlier.get(part, 0.0) + seconds for part, seconds in spent.items()}
    return split


def _spent(rows: Array, elapsed_s: float) -> dict[str, float]:
    """Starting, restarting and leaving count as "other"."""
    spent = rows[:, counters.SPENT]
    split = dict(zip(PARTS_OF_TIME, map(float, spent.sum(0)), strict=True))
    split["other"] += max(0.0, len(spent) * elapsed_s - float(spent.sum()))
    return split
