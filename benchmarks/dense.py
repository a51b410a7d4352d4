"""The Nature network's large dense layer, 3136 to 512, multiplied as it is written or transposed.

    .venv/bin/python benchmarks/dense.py

Interleaved. Between two products other memory is written, as in a run. Medians in microseconds, for
one and two torch threads. Writes benchmarks/results/dense.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from manyhands.roles import process_setup
from manyhands.runs import provenance
from speed import machine

RESULTS = Path(__file__).parent / "results" / "dense.json"
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 128, 256)
TURNS = 60


def compare(rows: int) -> dict[str, Any]:
    weight, bias, x = torch.randn(512, 3136), torch.randn(512), torch.randn(rows, 3136)
    elsewhere = torch.zeros(3_000_000)
    ways: dict[str, Callable[[], object]] = {
        "as written": lambda: torch.addmm(bias, x, weight.t()),
        "transposed": lambda: torch.addmm(bias[:, None], weight, x.t()).t().contiguous(),
    }
    us: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way, multiply in ways.items():
            elsewhere.add_(1)
            begun_s = time.perf_counter()
            multiply()
            us[way].append((time.perf_counter() - begun_s) * 1e6)
    ratios = [t / w for t, w in zip(us["transposed"], us["as written"], strict=True)]
    found = {way: round(statistics.median(times), 1) for way, times in us.items()}
    return {**found, "transposed / as written": round(statistics.median(ratios), 2)}


def main() -> None:
    found: dict[str, Any] = {
        "command": "python benchmarks/dense.py",
        "commit": provenance.commit(),
        "machine": machine(),
    }
    for threads in (1, 2):
        process_setup.set_threads(threads)
        cells = found[f"{threads} threads, us"] = {str(rows): compare(rows) for rows in ROWS}
        for rows, cell in cells.items():
            print(f"{threads} threads, {rows} rows: {cell}")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"-> {RESULTS}")


if __name__ == "__main__":
    main()
