"""When a run reports, evaluates, saves a checkpoint and saves a snapshot."""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING

from manyhands.runs import snapshots

if TYPE_CHECKING:
    from manyhands.config.plans import Plan

REPORT_PERIOD_S = 1.0
RETRY_S = 30.0  # until a failed save is tried again, if it is not due sooner


class Schedule:
    """Evaluations and snapshots are due by agent steps, checkpoints and reports by time."""

    def __init__(self, plan: Plan) -> None:
        self._evaluation_period = plan.evaluation.period_steps
        self._checkpoint_period_s = 60 * plan.checkpoint.period_minutes or math.inf
        self.next_evaluation: float = self._evaluation_period or math.inf
        self._next_report_s = perf_counter()
        self._next_checkpoint_s = 0.0
        self._next_snapshot, self._snapshot_retry_s = snapshots.FIRST, 0.0

    def begin(self, agent_steps: int) -> None:
        now = perf_counter()
        self._next_report_s = now + REPORT_PERIOD_S
        self._next_checkpoint_s = now + self._checkpoint_period_s
        self._next_snapshot = snapshots.next_due(agent_steps)

    def report_due(self) -> bool:
        return perf_counter() >= self._next_report_s

    def reported(self) -> None:
        self._next_report_s = perf_counter() + REPORT_PERIOD_S

    def evaluation_due(self, agent_steps: int) -> bool:
        if agent_steps < self.next_evaluation:
            return False
        self.next_evaluation = self._after(agent_steps)
        return True

    def _after(self, agent_steps: int) -> float:
        """The next multiple of the evaluation period."""
        period = self._evaluation_period
        return (agent_steps // period + 1) * period if period else math.inf

    def checkpoint_due(self) -> bool:
        if perf_counter() < self._next_checkpoint_s:
            return False
        self._next_checkpoint_s = perf_counter() + self._checkpoint_period_s
        return True

    def retry_checkpoint(self) -> None:
        self._next_checkpoint_s = min(self._next_checkpoint_s, perf_counter() + RETRY_S)

    def snapshot_due(self, agent_steps: int) -> bool:
        if agent_steps < self._next_snapshot or perf_counter() < self._snapshot_retry_s:
            return False
        self._next_snapshot = snapshots.next_due(agent_steps)
        return True

    def retry_snapshot(self, agent_steps: int) -> None:
        self._next_snapshot = agent_steps
        self._snapshot_retry_s = perf_counter() + RETRY_S

    def restore(self, next_evaluation: float | None, agent_steps: int) -> None:
        """Keeps an evaluation that is still due, unless the run now has another period."""
        self.next_evaluation = self._after(agent_steps)
        if next_evaluation is not None and self._evaluation_period:
            fits = next_evaluation % self._evaluation_period == 0
            self.next_evaluation = min(next_evaluation if fits else math.inf, self.next_evaluation)
