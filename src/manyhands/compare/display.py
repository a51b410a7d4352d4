"""The terminal while cells run: overall progress, the running cell, the time left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from manyhands.compare.matrix import Cell
from manyhands.compare.study import Study
from manyhands.types.output import standard
from manyhands.viewing.display import bar_text, clock_text, is_live, score_text

REFRESH_PER_S = 4


class Forecast:
    """Predicts the time of waiting cells: the mean of the recipe's cells, else of all cells.

    Until one has ended, it predicts the limit of a cell.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._took: dict[str, list[float]] = {}

    def add(self, cell: Cell, seconds: float) -> None:
        self._took.setdefault(cell.entry, []).append(seconds)

    def of(self, cell: Cell) -> float | None:
        seen = [s for took in self._took.values() for s in took]
        mine = self._took.get(cell.entry, seen)
        return sum(mine) / len(mine) if mine else self._limit_s or None

    def left_s(self, waiting: Sequence[Cell], spent_s: float) -> float | None:
        """The first of them has already run for `spent_s`."""
        each = [self.of(cell) for cell in waiting]
        known = [seconds for seconds in each if seconds is not None]
        if len(known) < len(each):
            return None
        return sum(known[1:]) + max(0.0, known[0] - spent_s) if known else 0.0


class Display:
    """Plain lines: one when a cell starts, one when it has ended."""

    def __init__(self, study: Study) -> None:
        self._forecast = Forecast(60 * study.minutes)
        self.waiting: list[Cell] = []
        self.total, self.counts = 0, dict[str, int]()
        self.status: dict[str, Any] = {}
        self._since = time.monotonic()

    def begin(self, waiting: Sequence[Cell], *, total: int) -> None:
        self.waiting, self.total = list(waiting), total
        if len(waiting) < total:
            self.say(f"{total - len(waiting)} of {total} cells ended earlier")

    def started(self, cell: Cell) -> None:
        self._since, self.status = time.monotonic(), {}
        self.announce(cell)

    def announce(self, cell: Cell) -> None:
        left = self.left_s()
        eta = "" if left is None else f"; {clock_text(left)} left in all"
        self.say(f"[{self.done + 1}/{self.total}] {cell.title}{eta}")

    def look(self, status: dict[str, Any]) -> None:
        self.status = status

    def ended(self, cell: Cell, outcome: dict[str, Any]) -> None:
        took = time.monotonic() - self._since
        self._forecast.add(cell, took)
        self.waiting = [other for other in self.waiting if other is not cell]
        self.counts[outcome["outcome"]] = self.counts.get(outcome["outcome"], 0) + 1
        self.say(f"{cell.title}: {outcome_text(outcome)} ({clock_text(took)})")

    @property
    def done(self) -> int:
        return self.total - len(self.waiting)

    def left_s(self) -> float | None:
        return self._forecast.left_s(self.waiting, time.monotonic() - self._since)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def close(self) -> None: ...


class Live(Display):
    """Three lines that stay at the bottom of the terminal."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        from rich.live import Live as Lines

        self._lines = Lines(get_renderable=self._drawn, refresh_per_second=REFRESH_PER_S)
        self._lines.start()

    def announce(self, cell: Cell) -> None: ...

    def say(self, line: str) -> None:
        self._lines.console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        self._lines.stop()

    def _drawn(self) -> Any:
        from rich.text import Text

        return Text("\n".join(picture(self)), no_wrap=True, overflow="ellipsis")


def make(study: Study) -> Display:
    return Live(study) if is_live(standard()) else Display(study)


def picture(display: Display) -> list[str]:
    left = display.left_s()
    eta = "" if left is None else f", {clock_text(left)} left"
    share = display.done / max(1, display.total)
    counts = ", ".join(f"{count} {name}" for name, count in display.counts.items())
    lines = [f"cells    {bar_text(share)}   {display.done} of {display.total}{eta}   {counts}"]
    if display.waiting:
        lines += [f"now      {display.waiting[0].title}", f"         {_now(display.status)}"]
    return lines


def _now(status: dict[str, Any]) -> str:
    if not status:
        return "starting"
    score = status.get("return_mean_100")
    shown = "–" if score is None else score_text(score)
    return (
        f"{status['share_done']:.0%} of its limit   return {shown}   "
        f"{status['episodes']:,} episodes   {status['agent_steps']:,} agent steps"
    )


def outcome_text(outcome: dict[str, Any]) -> str:
    """An outcome in a line."""
    kind, reason = str(outcome["outcome"]), outcome.get("reason")
    return f"{kind}: {reason}" if reason else kind
