"""What does the live display cost? Its share of a run's CPU seconds.

    .venv/bin/python benchmarks/display_cost.py

Trains CartPole in a pseudo-terminal, so that the display is live. Counts the CPU time of every
call: from the run, and from rich's thread, which draws four times a second.
Writes benchmarks/results/display-cost.json.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BAR = 0.01


def counted(owner: type, name: str, spent: dict[str, float]) -> None:
    """Counts the CPU time of a method, in any thread."""
    inner: Callable[..., Any] = getattr(owner, name)

    def outer(*args: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return inner(*args, **named)
        finally:
            key = f"{owner.__name__}.{name}"
            spent[key] = spent.get(key, 0.0) + time.thread_time() - began

    setattr(owner, name, outer)


def child(minutes: float, out: str) -> None:
    """Runs in the terminal: one run; writes its costs as JSON."""
    import rich.live

    import manyhands as mh
    from manyhands.viewing import display

    spent: dict[str, float] = {}
    counted(rich.live.Live, "refresh", spent)
    for name in ("show", "say"):
        counted(display.Live, name, spent)
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run("cartpole", minutes=minutes, out=f"{folder}/run", quiet=False)
        began = time.process_time()
        run.finish()
        whole = time.process_time() - began
        assert isinstance(run.display, display.Live)
    kept = {"display_cpu_s": sum(spent.values()), "run_cpu_s": whole, "calls_cpu_s": spent}
    Path(out).write_text(json.dumps({"share": sum(spent.values()) / whole, **kept}))


def one(minutes: float) -> dict[str, Any]:
    """Starts a run in its own terminal and reads it, so that it never fills."""
    terminal, its_end = pty.openpty()
    with tempfile.NamedTemporaryFile() as out:
        command = [sys.executable, __file__, "--minutes", str(minutes), "--child", out.name]
        environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        running = subprocess.Popen(command, stdout=its_end, env=environment)
        os.close(its_end)
        drawn = 0
        while some := _read(terminal):
            drawn += len(some)
        os.close(terminal)
        assert running.wait() == 0
        return {**json.loads(Path(out.name).read_text()), "bytes_drawn": drawn}


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end was closed
        return b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.minutes, given.child)
        return
    from manyhands.runs import provenance
    from speed import machine

    rounds = [one(given.minutes) for _ in range(given.rounds)]
    share = statistics.median(row["share"] for row in rounds)
    about = {
        "commit": provenance.commit(),
        "machine": machine(),
        "bar": BAR,
        "minutes": given.minutes,
    }
    written = {**about, "share": share, "rounds": rounds}
    (RESULTS / "display-cost.json").write_text(json.dumps(written, indent=1) + "\n")
    print(f"{share:.2%} of the run's CPU time")


if __name__ == "__main__":
    main()
