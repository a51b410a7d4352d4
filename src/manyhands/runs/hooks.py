"""Hooks: a user's function that sees every report of a run, in main's process.

    def stop_early(report):
        if report.metrics.get("charts/return_mean_100", 0) > 100:
            report.stop("good enough")

    mh.train("cartpole", on_report=stop_early)      # or: --hook my.py:stop_early

An exception in it ends the run, after a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from manyhands.types import BadRequest, Failure, users_files
from manyhands.types.errors import text_of

if TYPE_CHECKING:
    from manyhands.runs.run import Run

LARGEST_SCALE = 1e6


class Report:
    """What a hook is given, about once a second."""

    def __init__(self, metrics: dict[str, Any], run: Run) -> None:
        self.metrics, self.run = metrics, run
        self.stops, self.why = False, ""

    def stop(self, why: str = "") -> None:
        """Ends the run now, with a checkpoint and a summary."""
        self.stops, self.why = True, why

    def log(self, name: str, value: float) -> None:
        """Adds a number to this report, and so to metrics.jsonl and TensorBoard."""
        self.metrics[name if "/" in name else f"hook/{name}"] = float(value)

    def scale_lr(self, factor: float) -> None:
        """From now on every learner multiplies its learning rate by this factor."""
        if not (math.isfinite(factor) and 0 <= factor <= LARGEST_SCALE):
            raise ValueError(f"a learning rate cannot be multiplied by {factor}")
        self.run.workers.scale_lr(factor)


Hook = Callable[[Report], object]


def ask(hook: Hook | None, metrics: dict[str, Any], run: Run) -> None:
    """Shows the report to the hook, and stops the run if it asks for that."""
    if hook is None:
        return
    report = Report(metrics, run)
    try:
        hook(report)
    except Exception as error:
        raise Failure(
            f"the hook raised {type(error).__name__}: {text_of(error)}",
            "the run was saved: fix the hook and resume",
        ) from error
    if report.stops:
        run.progress.stopped = report.why or "no reason given"
        run.display.say(f"stopped by the hook: {run.progress.stopped}")


def load(hook: Hook | str | None) -> Hook | None:
    """From a function, an object with a method `on_report`, or ``my.py:name``."""
    if not hook:
        return None
    named: Any = users_files.load_name(hook) if isinstance(hook, str) else hook
    found = getattr(named, "on_report", named)
    if isinstance(named, type) or not callable(found):
        raise BadRequest(
            f"the hook {hook!r} is no function", "give a function of one argument, the report"
        )
    made: Hook = found
    return made
