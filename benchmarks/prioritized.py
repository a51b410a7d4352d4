"""Prioritized replay against cpprb's (C++): insert, draw 32, update 32, in a million rows.

    python -m venv PEER && PEER/bin/pip install cpprb numpy
    python benchmarks/prioritized.py --peer PEER/bin/python

Interleaved pairs on the same cores, one process at a time; the ratio is the median of the pairs'
(above 1: ours is faster). Both hold observations of eight floats and are full, so that every insert
overwrites. cpprb keeps both observations of a transition and gives NumPy arrays; ours keeps one,
finds the other, and gives tensors. Writes benchmarks/results/prioritized.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ROWS, BATCH = 1_000_000, 32
# How a cycle looks: environments stepped at once, vector steps, draws.
CYCLES = {
    "32 rows at once, 1 draw": (32, 1, 1),
    "8 environments, 2 draws a step (one per 4 agent steps)": (8, 1, 2),
    "1 environment, 1 draw per 4 steps": (1, 4, 1),
}
Cycle = Callable[[np.ndarray], None]


def ours(environments: int, steps: int, draws: int) -> Cycle:
    import torch

    from manyhands.memory import Config
    from manyhands.memory.prioritized import make
    from manyhands.types import Demand, EnvSpec, Rows

    torch.set_num_threads(1)
    spec = EnvSpec("benchmark", environments, (8,), "float32", 1, 4)
    config = Config(capacity=ROWS, kind="prioritized")
    memory = make(spec, config, columns={}, rng=np.random.default_rng(0))
    n = environments
    row = Rows(
        frame=np.random.default_rng(1).random((n, 8), dtype=np.float32),
        action=np.zeros(n, np.int32),
        reward=np.zeros(n, np.float32),
        discount=np.ones(n, np.float32),
        first=np.zeros(n, bool),
        ended=np.zeros(n, bool),
        last_frame=np.zeros((0, 8), np.float32),
        next_frame=np.zeros((n, 8), np.float32),
        columns={},
    )
    for _ in range(memory.lanes.rows + 2):
        memory.extend(row)
    every = environments * steps / draws
    demand = Demand(BATCH, every, memory.steps_seen, 1, 0.99)

    def cycle(errors: np.ndarray) -> None:
        for _ in range(steps):
            memory.extend(row)
        drawn = 0
        for batch in memory.due(demand, lambda drawn: drawn):
            memory.report(batch, torch.from_numpy(errors))
            drawn += 1
        assert drawn == draws

    return cycle


def theirs(environments: int, steps: int, draws: int) -> Cycle:
    from cpprb import PrioritizedReplayBuffer

    kinds = {"obs": {"shape": 8}, "act": {"dtype": np.int32}, "rew": {}, "next_obs": {"shape": 8}}
    memory = PrioritizedReplayBuffer(ROWS, {**kinds, "done": {}}, alpha=0.6)

    def rows(n: int) -> dict[str, np.ndarray]:
        seen, number = np.random.default_rng(1).random((n, 8), dtype=np.float32), np.zeros(n)
        action, number = np.zeros(n, np.int32), number.astype(np.float32)
        return {"obs": seen, "act": action, "rew": number, "next_obs": seen, "done": number}

    for _ in range(ROWS // 1000):
        memory.add(**rows(1000))
    row = rows(environments)

    def cycle(errors: np.ndarray) -> None:
        for _ in range(steps):
            memory.add(**row)
        for _ in range(draws):
            batch = memory.sample(BATCH, beta=0.4)
            memory.update_priorities(batch["indexes"], errors)

    return cycle


def measure(make_cycle: Callable[[int, int, int], Cycle], shape: tuple[int, int, int]) -> float:
    """Median microseconds of a cycle, after as many to warm up as it takes to mix priorities."""
    cycle, rng, times = make_cycle(*shape), np.random.default_rng(2), []
    for i in range(6_000):
        errors = rng.random(BATCH).astype(np.float32)
        started = time.perf_counter()
        cycle(errors)
        if i >= 2_000:
            times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def run(python: str, side: str, name: str) -> float:
    command = [python, __file__, "--side", side, "--cycle", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.splitlines()[-1])


def compare(peer: str, name: str, pairs: int) -> dict[str, object]:
    measured = [
        (run(sys.executable, "ours", name), run(peer, "theirs", name)) for _ in range(pairs)
    ]
    found = {
        "ours_us": statistics.median(mine for mine, _ in measured),
        "cpprb_us": statistics.median(other for _, other in measured),
        "ratio": statistics.median(other / mine for mine, other in measured),
        "pairs": measured,
    }
    print(
        f"{name}: ours {found['ours_us']:.0f} us, cpprb {found['cpprb_us']:.0f} us, "
        f"ratio {found['ratio']:.2f}"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python that has cpprb")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--side", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--cycle", choices=tuple(CYCLES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(measure(ours if given.side == "ours" else theirs, CYCLES[given.cycle]))
        return
    if not given.peer:
        parser.error("--peer is needed: a Python that has cpprb")
    load = os.getloadavg()[0]
    cycles = {name: compare(given.peer, name, given.pairs) for name in CYCLES}
    machine = {"cores": os.cpu_count(), "processor": platform.processor(), "load_before": load}
    results = {"rows": ROWS, "batch": BATCH, "machine": machine, "cycles": cycles}
    out = HERE / "results" / "prioritized.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
