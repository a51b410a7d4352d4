"""The display while a run trains: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO, cast

from manyhands.types.output import Outlet, standard

PLAIN_PERIOD_S = 10.0
REFRESH_PER_S = 4
BAR_WIDTH, CURVE_WIDTH = 30, 40
NODE_LINES = 4
BLOCKS = "▁▂▃▄▅▆▇█"


class Display(Protocol):
    def show(self, share: float, metrics: dict[str, Any]) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    def show(self, share: float, metrics: dict[str, Any]) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class Plain:
    """A line every ten seconds, for logs and pipes."""

    def __init__(self, out: Outlet) -> None:
        self._out, self._next, self._clock = out, time.monotonic(), Clock()

    def show(self, share: float, metrics: dict[str, Any]) -> None:
        now, left = time.monotonic(), self._clock.left_s(share)
        if now < self._next or not metrics["agent_steps"]:
            return
        self._next = now + PLAIN_PERIOD_S
        eta = f"  ETA {clock_text(left)}" if left is not None else ""
        self.say(f"{share:6.1%}  {_line(metrics)}{eta}")

    def say(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    def close(self) -> None: ...


class Live:
    """Six lines that stay in place: progress, return, speed and how the time is spent.

    A thread of rich draws them. The numbers change when the run reports.
    """

    def __init__(self, out: Outlet) -> None:
        from rich.console import Console
        from rich.live import Live as Lines

        self._clock = Clock()
        self._share, self._metrics = 0.0, dict[str, Any]()
        self._end_s: float | None = None  # estimated at the last report
        self._curve = Curve(CURVE_WIDTH)
        self._lines = Lines(
            console=Console(file=cast(TextIO, out)),
            get_renderable=self._drawn,
            refresh_per_second=REFRESH_PER_S,
        )
        self._lines.start()

    def show(self, share: float, metrics: dict[str, Any]) -> None:
        self._share, self._metrics = share, metrics
        left_s = self._clock.left_s(share)
        self._end_s = None if left_s is None else self._clock.passed_s() + left_s
        score = metrics.get("charts/return_mean_100")
        if score is not None:
            self._curve.add(score)

    def say(self, line: str) -> None:
        self._lines.console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        """Removes the panel, so that the last lines stay visible."""
        self._lines.transient = True
        self._lines.stop()

    def _drawn(self) -> Any:
        from rich.text import Text

        passed_s = self._clock.passed_s()
        left_s = None if self._end_s is None else max(0.0, self._end_s - passed_s)
        lines = picture(self._share, passed_s, left_s, self._metrics, self._curve)
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def make(*, quiet: bool) -> Display:
    if quiet:
        return Silent()
    out = standard()
    return Live(out) if is_live(out) else Plain(out)


Tell = Callable[[str], None]


def teller(first: str, *, quiet: bool) -> Tell:
    """Prints lines before the live panel exists; prints ``first`` at once."""
    tell: Tell = Silent().say if quiet else Plain(standard()).say
    tell(first)
    return tell


def is_live(out: Outlet) -> bool:
    """Whether ``out`` is a terminal that can redraw lines and show all our characters."""
    characters = bar_text(0.5) + BLOCKS
    return out.isatty() and os.environ.get("TERM") != "dumb" and out.can_show(characters)


# --- The panel ----------------------------------------------------------------------------------


class Clock:
    """Estimates the time left from the first share it saw: a resumed run begins midway."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: tuple[float, float] | None = None

    def passed_s(self) -> float:
        return time.monotonic() - self._start

    def left_s(self, share: float) -> float | None:
        """None until a hundredth was done while we looked."""
        now = self.passed_s()
        if self._first is None:
            self._first = now, share
        since, begun = self._first
        done = share - begun
        return (now - since) * (1 - share) / done if done > 0.01 else None


class Curve:
    """A run's history as a bounded number of means, each over the same number of values."""

    def __init__(self, width: int) -> None:
        self._width, self._each = width, 1
        self._means: list[float] = []
        self._open: list[float] = []

    def add(self, value: float) -> None:
        self._open.append(value)
        if len(self._open) < self._each:
            return
        self._means.append(sum(self._open) / len(self._open))
        self._open.clear()
        if len(self._means) == 2 * self._width:
            self._means = [(a + b) / 2 for a, b in zip(*[iter(self._means)] * 2, strict=True)]
            self._each *= 2

    def __str__(self) -> str:
        shown = self._means
        if len(shown) > self._width:  # one or two means for each character
            at = [i * len(shown) // self._width for i in range(self._width)]
            shown = [shown[i] for i in at[:-1]] + shown[-1:]
        low, high = min(shown, default=0.0), max(shown, default=0.0)
        scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
        return "".join(BLOCKS[round((value - low) * scale)] for value in shown)


def picture(
    share: float, passed_s: float, left_s: float | None, metrics: dict[str, Any], curve: Curve
) -> list[str]:
    if not metrics:
        return [f"{'':9}{bar_text(0.0)}   starting"]
    score, fill = metrics.get("charts/return_mean_100"), metrics.get("memory_fill")
    faults = {k: n for k, n in (metrics.get("faults") or {}).items() if n}
    fault_text = ", ".join(f"{name} {count}" for name, count in faults.items()) or "none"
    eta = "" if left_s is None else f", {clock_text(left_s)} left"
    return [
        f"{share:7.1%}  {bar_text(share)}   {clock_text(passed_s)} passed{eta}",
        f"return   {'–' if score is None else score_text(score)} over the last 100   {curve}",
        f"         {metrics['charts/episodes']:,.0f} episodes   "
        f"{metrics['agent_steps']:,} agent steps   {metrics['updates']:,} updates",
        f"speed    {metrics['charts/SPS']:,.0f} steps/s   {metrics['charts/UPS']:,.0f} updates/s"
        f"{_epsilon(metrics, '   ')}",
        *_time_lines(metrics.get("time_split") or {}),
        *_node_lines(metrics.get("nodes") or {}),
        f"memory   {'–' if fill is None else f'{fill:.0%} full'}   faults: {fault_text}",
    ]


def _time_lines(split: dict[str, dict[str, float]]) -> list[str]:
    """One line for each role: the largest parts first, without those below half a percent."""
    lines = []
    for role, parts in split.items():
        largest = sorted(parts.items(), key=lambda part: -part[1])
        text = "  ".join(f"{name} {part:.0%}" for name, part in largest if part >= 0.005)
        lines.append(f"time     {role}: {text}" if len(split) > 1 else f"time     {text}")
    return lines


def _node_lines(nodes: dict[str, dict[str, int]]) -> list[str]:
    """One line for each node, if there are several; at most `NODE_LINES`."""
    if len(nodes) < 2:
        return []
    lines = [f"node     {name}: {_roles_text(roles)}" for name, roles in nodes.items()]
    more = len(lines) - NODE_LINES
    return lines if more <= 0 else [*lines[:NODE_LINES], f"         and {more} more nodes"]


def _roles_text(roles: dict[str, int]) -> str:
    return ", ".join(f"{n} {role}" if n == 1 else f"{n} {role}s" for role, n in roles.items())


def bar_text(share: float) -> str:
    full = round(share * BAR_WIDTH)
    return "█" * full + "░" * (BAR_WIDTH - full)


def _line(metrics: dict[str, Any]) -> str:
    score = metrics.get("charts/return_mean_100")
    return (
        f"steps {metrics['agent_steps']:,}  episodes {metrics['charts/episodes']:,.0f}  "
        f"return(100) {'–' if score is None else score_text(score)}  "
        f"{metrics['charts/SPS']:,.0f} steps/s  {metrics['charts/UPS']:,.0f} updates/s"
        f"{_epsilon(metrics, '  ')}"
    )


def _epsilon(metrics: dict[str, Any], gap: str) -> str:
    """Empty if the policy has no epsilon."""
    epsilon = metrics.get("charts/epsilon")
    return "" if epsilon is None else f"{gap}epsilon {epsilon:.3f}"


def score_text(score: float) -> str:
    """A return, with two decimals below ten and one above."""
    return f"{score:,.2f}" if abs(score) < 10 else f"{score:,.1f}"


def clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
