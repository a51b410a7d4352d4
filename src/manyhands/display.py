"""What a person sees while it trains: a bar with an ETA in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

PLAIN_PERIOD_S = 10.0


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

    def __init__(self) -> None:
        self._next = self._start = time.monotonic()

    def show(self, share: float, metrics: dict[str, Any]) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PLAIN_PERIOD_S
        left = (now - self._start) * (1 - share) / share if share > 0.01 else None
        eta = f"  ETA {_clock(left)}" if left is not None else ""
        print(f"{share:6.1%}  {_line(metrics)}{eta}", flush=True)

    def say(self, line: str) -> None:
        print(line, flush=True)

    def close(self) -> None: ...


class Bar:
    """A rich progress bar."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.percentage:>5.1f}%"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("starting", total=1.0)
        self._progress.start()

    def show(self, share: float, metrics: dict[str, Any]) -> None:
        self._progress.update(self._task, completed=share, description=_line(metrics))

    def say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False)

    def close(self) -> None:
        self._progress.stop()


def make(*, quiet: bool) -> Display:
    if quiet:
        return Silent()
    return Bar() if sys.stdout.isatty() else Plain()


def _line(metrics: dict[str, Any]) -> str:
    score = metrics.get("charts/return_mean_100")
    return (
        f"steps {metrics['agent_steps']:,}  episodes {metrics['charts/episodes']:,.0f}  "
        f"return(100) {'–' if score is None else f'{score:.1f}'}  "
        f"epsilon {metrics['charts/epsilon']:.3f}  {metrics['charts/SPS']:,.0f} steps/s  "
        f"{metrics['charts/UPS']:,.0f} updates/s"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
