"""Ray against processes on one machine: agent steps and updates per second, interleaved.

    python benchmarks/ray_speed.py [--seconds 20] [--pairs 4] [CASE …]

Each pair trains the same recipe with both backends, in alternating order. The rates are those of
the second half of a run, after all processes have started. Prints medians and the ratios, and
writes benchmarks/results/ray_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import manyhands as mh

HERE = Path(__file__).parent
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "hogwild": ("lunarlander", {"recipe": "hogwild", "workers": 2}),
    "downpour": ("lunarlander", {"recipe": "downpour", "workers": 2}),
    "sync": ("lunarlander", {"recipe": "sync", "workers": 2}),
    "ad-psgd": ("lunarlander", {"recipe": "ad-psgd", "workers": 2}),
    "distributed-dqn": ("breakout", {"recipe": "distributed-dqn", "actors": 2}),
    "apex": ("breakout", {"recipe": "apex", "actors": 2}),
    "impala": ("breakout", {"recipe": "impala", "actors": 2}),
}
SMALL_REPLAY: dict[str, Any] = {"memory": {"capacity": 50_000}, "checkpoint": {"replay": False}}


def rates(case: str, backend: str, seconds: float) -> tuple[float, float]:
    """Agent steps/s and updates/s in the second half of a run that learns for so long."""
    task, options = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(
            task, out=Path(folder) / "run", backend=backend, minutes=10, **options, **SMALL_REPLAY
        )
        began: tuple[float, int, int] | None = None
        first_s, now = None, (0.0, 0, 0)
        for metrics in run:
            now = time.perf_counter(), metrics["agent_steps"], metrics["updates"]
            first_s = first_s or (now[0] if metrics["updates"] else None)
            if began is None and first_s is not None and now[0] - first_s > seconds / 2:
                began = now
            if first_s is not None and now[0] - first_s > seconds:
                break
        assert began is not None
        passed_s = now[0] - began[0]
        return (now[1] - began[1]) / passed_s, (now[2] - began[2]) / passed_s


def measure(case: str, pairs: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[tuple[float, float]]] = {"processes": [], "ray": []}
    for pair in range(pairs):
        for backend in ("processes", "ray") if pair % 2 == 0 else ("ray", "processes"):
            found[backend].append(rates(case, backend, seconds))
            print(case, backend, *(f"{rate:.0f}" for rate in found[backend][-1]), flush=True)
    both = list(zip(found["ray"], found["processes"], strict=True))
    return {
        "agent_steps_per_s": {
            name: round(statistics.median(rate[0] for rate in some), 1)
            for name, some in found.items()
        },
        "updates_per_s": {
            name: round(statistics.median(rate[1] for rate in some), 1)
            for name, some in found.items()
        },
        "ratio_steps": round(statistics.median(ray[0] / here[0] for ray, here in both), 3),
        "ratio_updates": round(statistics.median(ray[1] / here[1] for ray, here in both), 3),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=4)
    given = parser.parse_args()
    path = HERE / "results" / "ray_speed.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    for case in given.cases or CASES:
        result[case] = measure(case, given.pairs, given.seconds)
        result["machine"] = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
        path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
