"""The terminal while cells run: overall progress, the running cells, the time left."""

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

    def left_s(self, cells: Sequence[tuple[Cell, float]]) -> float | None:
        """Of cells and the seconds that each has run for."""
        left = 0.0
        for cell, spent_s in cells:
            whole_s = self.of(cell)
            if whole_s is None:
                return None
            left += max(0.0, whole_s - spent_s)
        return left


class Display:
    """Plain lines: one when a cell starts, one when it has ended."""

    def __init__(self, study: Study) -> None:
        self._forecast = Forecast(60 * study.minutes)
        self.waiting: list[Cell] = []  # that have not ended, the running ones included
        self.running: list[Cell] = []
        self.total, self.counts = 0, dict[str, int]()
        self.status: dict[str, dict[str, Any]] = {}  # by the name of the cell
        self._since: dict[str, float] = {}

    def begin(self, waiting: Sequence[Cell], *, total: int) -> None:
        self.waiting, self.total = list(waiting), total
        if len(waiting) < total:
            self.say(f"{total - len(waiting)} of {total} cells ended earlier")

    def started(self, cell: Cell) -> None:
        self._since[cell.name] = time.monotonic()
        self.running.append(cell)
        self.announce(cell)

    def announce(self, cell: Cell) -> None:
        left = self.left_s()
        eta = "" if left is None else f"; {clock_text(left)} left in all"
        number = self.done + len(self.running)
        self.say(f"[{number}/{self.total}] {cell.title}{eta}")

    def look(self, cell: Cell, status: dict[str, Any]) -> None:
        self.status[cell.name] = status

    def ended(self, cell: Cell, outcome: dict[str, Any]) -> None:
        took = self._spent_s(cell)
        self._forecast.add(cell, took)
        self.waiting = [other for other in self.waiting if other is not cell]
        self.running = [other for other in self.running if other is not cell]
        self.counts[outcome["outcome"]] = self.counts.get(outcome["outcome"], 0) + 1
        self.say(f"{cell.title}: {outcome_text(outcome)} ({clock_text(took)})")

    @property
    def done(self) -> int:
        return self.total - len(self.waiting)

    def left_s(self) -> float | None:
        """As if as many cells as now ran side by side until the end."""
        left = self._forecast.left_s([(cell, self._spent_s(cell)) for cell in self.waiting])
        return None if left is None else left / max(1, len(self.running))

    def _spent_s(self, cell: Cell) -> float:
        now = time.monotonic()
        return now - self._since.get(cell.name, now)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def close(self) -> None: ...


class Live(Display):
    """Lines that stay at the bottom of the terminal: the whole, and each running cell."""

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
    for cell in display.running:
        lines += [f"now      {cell.title}", f"         {_now(display.status.get(cell.name, {}))}"]
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
