"""Prioritized replay against cpprb's (C++): insert, draw 32, update 32, in a million rows.

    python -m venv PEER && PEER/bin/pip install cpprb numpy
    python benchmarks/prioritized.py --peer PEER/bin/python

Interleaved rounds on the same cores, one process at a time. A ratio is the median over the rounds
(above 1: ours is faster). Ours runs with numba (the extra `fast`) and without. Both hold
observations of eight floats and are full, so every insert overwrites. cpprb stores both
observations of a transition and returns NumPy arrays; ours stores one, finds the other, and returns
tensors. Ours draws all due batches together, up to `replay.AT_ONCE`; cpprb draws them one by one.
Writes benchmarks/results/prioritized.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROWS, BATCH = 1_000_000, 32
# How a cycle looks: environments stepped at once, vector steps, draws.
CYCLES = {
    "32 rows at once, 1 draw": (32, 1, 1),
    "32 environments, 8 draws a step (one per 4 agent steps)": (32, 1, 8),
    "8 environments, 2 draws a step (one per 4 agent steps)": (8, 1, 2),
    "1 environment, 1 draw per 4 steps": (1, 4, 1),
}
Cycle = Callable[[np.ndarray], None]


def ours(environments: int, steps: int, draws: int, *, compiled: bool) -> Cycle:
    import torch

    from manyhands.memory import Config
    from manyhands.memory.prioritized import Prioritized, fastest
    from manyhands.memory.replay import Replay
    from manyhands.types import Demand

    torch.set_num_threads(1)
    sampler = fastest() if compiled else Prioritized
    assert not compiled or sampler is not Prioritized, "numba is not installed"
    config = Config(capacity=ROWS, kind="prioritized")
    rng = np.random.default_rng(0)
    memory = Replay(spec(environments), config, columns={}, rng=rng, sampler=sampler)
    fill(memory)
    row = rows_of(environments)
    demand = Demand(BATCH, environments * steps / draws, memory.steps_seen, 1, 0.99)

    def cycle(errors: np.ndarray) -> None:
        for _ in range(steps):
            memory.extend(row)
        drawn = 0
        for batch in memory.due(demand, lambda drawn: drawn):
            memory.report(batch, torch.from_numpy(errors))
            drawn += 1
        assert drawn == draws

    return cycle


def spec(environments: int) -> Any:
    from manyhands.types import EnvSpec

    return EnvSpec("benchmark", environments, (8,), "float32", 1, 4)


def rows_of(n: int) -> Any:
    from manyhands.types import Rows

    return Rows(
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


def fill(memory: Any) -> None:
    """As if so many steps had been taken: a million in a lane of their own would take long."""
    lanes = memory.lanes
    lanes.arrays["frame"][:] = np.random.default_rng(1).random(8, dtype=np.float32)
    lanes.arrays["discount"][:] = 1
    lanes.written[:] = lanes.rows + 2
    memory.steps_seen = int(lanes.written.sum())


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


def measure(cycle: Cycle) -> float:
    """Median microseconds of a cycle, after as many to warm up as it takes to mix priorities."""
    rng, times = np.random.default_rng(2), []
    for i in range(5_000):
        errors = rng.random(BATCH).astype(np.float32)
        started = time.perf_counter()
        cycle(errors)
        if i >= 2_000:
            times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


SIDES: dict[str, Callable[[int, int, int], Cycle]] = {
    "ours": partial(ours, compiled=True),
    "ours_numpy": partial(ours, compiled=False),
    "cpprb": theirs,
}


def run(python: str, side: str, name: str) -> float:
    command = [python, __file__, "--side", side, "--cycle", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.splitlines()[-1])


def compare(peer: str, name: str, rounds: int) -> dict[str, Any]:
    measured = []
    for i in range(rounds):
        order = list(SIDES) if i % 2 == 0 else list(reversed(SIDES))
        pythons = {side: peer if side == "cpprb" else sys.executable for side in order}
        times = {side: run(pythons[side], side, name) for side in order}
        measured.append({f"{side}_us": round(times[side], 1) for side in SIDES})
    found: dict[str, Any] = {
        f"{side}_us": statistics.median(row[f"{side}_us"] for row in measured) for side in SIDES
    }
    for ratio, side in (("ratio", "ours"), ("ratio_numpy", "ours_numpy")):
        found[ratio] = statistics.median(row["cpprb_us"] / row[f"{side}_us"] for row in measured)
    print(name, {key: round(value, 2) for key, value in found.items()}, flush=True)
    return {**found, "rounds": measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python that has cpprb")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--cycle", choices=tuple(CYCLES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(measure(SIDES[given.side](*CYCLES[given.cycle])))
        return
    if not given.peer:
        parser.error("--peer is needed: a Python that has cpprb")
    from manyhands.runs import provenance
    from speed import machine

    about = {"rows": ROWS, "batch": BATCH, "commit": provenance.commit(), "machine": machine()}
    load = round(os.getloadavg()[0], 2)
    cycles = {name: compare(given.peer, name, given.rounds) for name in CYCLES}
    out = HERE / "results" / "prioritized.json"
    written = {**about, "load_before": load, "reference": "cpprb", "cycles": cycles}
    out.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
