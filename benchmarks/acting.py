"""Acting with NumPy against torch: the values of a few observations, LunarLander's network.

    .venv/bin/python benchmarks/acting.py

One torch thread, nine interleaved rounds, medians in microseconds, hot caches. Writes
benchmarks/results/acting.json.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyhands.networks import heads
from manyhands.networks.closed import passes_of
from manyhands.networks.torsos import mlp
from manyhands.roles import process_setup
from manyhands.runs import provenance
from speed import machine

RESULTS = Path(__file__).parent / "results" / "acting.json"
OBSERVATIONS = (1, 4, 8, 16, 32, 64, 128)
CALLS, ROUNDS = 300, 9


def microseconds(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begun_s) / CALLS * 1e6


def compare(network: torch.nn.Module, observations: int) -> dict[str, Any]:
    given = np.random.default_rng(1).normal(size=(observations, 8)).astype(np.float32)
    passes = passes_of(network)
    assert passes is not None
    observation = torch.from_numpy(given)

    def by_torch() -> object:
        with torch.inference_mode():
            return network(observation)

    ways = {"numpy": lambda: passes.forward(given), "torch": by_torch}
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, call in ways.items():
            rounds[way].append(microseconds(call))
    found = {way: round(statistics.median(times), 1) for way, times in rounds.items()}
    ratios = [t / n for t, n in zip(rounds["torch"], rounds["numpy"], strict=True)]
    return {**found, "torch / numpy": round(statistics.median(ratios), 2)}


def main() -> None:
    process_setup.set_threads(1)
    found: dict[str, Any] = {
        "command": "python benchmarks/acting.py",
        "commit": provenance.commit(),
        "machine": machine(),
    }
    for head in (heads.QNetwork, heads.DuelingNetwork):
        network = head(mlp.MLP((8,), (256, 256), scale=1.0), 256, 4)
        found[head.__name__] = {str(n): compare(network, n) for n in OBSERVATIONS}
        print(head.__name__, json.dumps(found[head.__name__]), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
