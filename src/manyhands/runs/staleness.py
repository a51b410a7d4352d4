"""How old gradients were when applied, and the weights that separate actors acted with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from manyhands.types import Ledger

if TYPE_CHECKING:
    from manyhands.runs.workers import Workers


def summary(workers: Workers) -> dict[str, Any]:
    """`actors`: only if they are separate from learners."""
    mean, late, dropped = workers.strategy.ledger.staleness()
    applied = {"mean": mean, "p95": late, "dropped": dropped}
    if workers.acted is None:
        return applied
    mean, late, _ = workers.acted.staleness()
    return {**applied, "actors": {"mean": mean, "p95": late}}


def metrics(acted: Ledger) -> Mapping[str, float]:
    mean, late, _ = acted.staleness()
    return {"charts/actors_staleness_mean": mean, "charts/actors_staleness_p95": late}
