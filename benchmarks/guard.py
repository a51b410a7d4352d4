"""Has something become slower? Whole turns against a plain loop of matrix products.

    make bench-guard              exits with 1 if a ratio fell by more than 15 %
    make bench-guard KEEP=--keep  keeps the ratios of now

A case is one worker in this process: it steps its environments, acts, records, draws and learns.
The reference is torch's matrix products of the same network, on one thread, in the same process,
in turns with the case. The ratio is reference seconds / seconds of the case per update. The speed
of the machine cancels out. A ratio may be above 1: narrow products are slow as plain products.
benchmarks/results/guard.json keeps the ratios of each kind of processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import manyhands as mh
from manyhands.runs import provenance
from speed import machine

KEPT = Path(__file__).parent / "results" / "guard.json"
MOST_LOSS = 0.15
BLOCKS = 9  # of each, in turns
BLOCK_S = 1.0  # of the case, and of the reference around it
WARMUP_UPDATES = 40
MLP_LUNAR = ((1, 8, 256), (1, 256, 256), (1, 256, 4))  # places, inputs, outputs
MLP_CART = ((1, 4, 128), (1, 128, 128), (1, 128, 2))
NATURE = ((400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 512), (1, 512, 4))


class Case(NamedTuple):
    task: str
    options: dict[str, Any]
    layers: tuple[tuple[int, int, int], ...]
    batch: int  # rows of one update
    forwards: int = 2  # passes without a gradient: target, next values


ONE = {"envs_per_worker": 1, "threads": 1}
REPLAY = {"warmup_steps": 500, "n_step": 1, "double": False, "epsilon_decay_steps": 0}
WIDE = {"channels": (32, 64, 64), "hidden": (512,), "precision": "float32"}
CASES = {
    "lunarlander dqn": Case(
        "lunarlander",
        ONE | {"recipe": "dqn", "dqn": REPLAY | {"batch_size": 128, "steps_per_update": 1}},
        MLP_LUNAR,
        128,
    ),
    "cartpole dqn": Case(
        "cartpole",
        ONE | {"recipe": "dqn", "dqn": REPLAY | {"batch_size": 64, "steps_per_update": 1}},
        MLP_CART,
        64,
    ),
    "cartpole ppo": Case(
        "cartpole", {"recipe": "ppo", "threads": 1, "envs_per_worker": 8}, MLP_CART, 64, 1
    ),
    "breakout dqn": Case(
        "breakout",
        {"recipe": "dqn", "threads": 1, "envs_per_worker": 8, "network": WIDE,
         "dqn": REPLAY | {"batch_size": 32, "steps_per_update": 4},
         "memory": {"capacity": 5_000}},
        NATURE,
        32,
    ),
    "breakout pqn": Case(
        "breakout",
        {"recipe": "pqn", "threads": 1, "envs_per_worker": 8, "network": WIDE,
         "pqn": {"rollout_steps": 32, "minibatches": 4}},
        NATURE,
        64,
        1,
    ),
}  # fmt: skip


def reference(case: Case) -> Callable[[], float]:
    """Seconds of the products of one update: forward passes, gradients of inputs and weights."""
    pairs = []
    for number, (places, inputs, outputs) in enumerate(case.layers):
        rows = case.batch * places
        a, w, g = torch.rand(rows, inputs), torch.rand(inputs, outputs), torch.rand(rows, outputs)
        pairs += [(a, w)] * case.forwards + [(a.t(), g)] + ([(g, w.t())] if number else [])

    def once() -> float:
        began = time.perf_counter()
        for left, right in pairs:
            left @ right
        return time.perf_counter() - began

    return once


@contextmanager
def learning(case: Case) -> Iterator[Callable[[], int]]:
    """A function that takes turns until an update was made, and returns how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(case.task, out=f"{folder}/run", steps=10**9, seed=1, **case.options)
        worker, workers = run.worker, run.workers

        def advance() -> int:
            before = workers.updates
            while workers.updates == before:
                worker.turn()
            return workers.updates

        worker.stopwatch.begin()
        while advance() < WARMUP_UPDATES:
            pass
        yield advance
        worker.env.close()
        run.backend.close()


def ratio(case: Case) -> dict[str, float]:
    with learning(case) as advance:
        torch.set_num_threads(1)
        once, ratios = reference(case), []
        for _ in range(BLOCKS):
            before_s = typical_s(once)
            own_s = update_s(advance)
            ratios.append((before_s + typical_s(once)) / 2 / own_s)
    return {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def typical_s(once: Callable[[], float]) -> float:
    """The median of as many calls as half a block has time for."""
    ends, taken = time.perf_counter() + BLOCK_S / 2, [once()]
    while time.perf_counter() < ends:
        taken.append(once())
    return statistics.median(taken)


def update_s(advance: Callable[[], int]) -> float:
    first, began = advance(), time.perf_counter()
    last = first
    while last == first or time.perf_counter() - began < BLOCK_S:
        last = advance()
    return (time.perf_counter() - began) / (last - first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the ratios of now")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    given = parser.parse_args()
    cpu = machine()["cpu"]
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    ours, slower = kept.setdefault(cpu, {}), []
    for name in given.cases:
        found = ratio(CASES[name])
        before = ours.get(name, found)["ratio"]
        change = found["ratio"] / before - 1
        if change < -MOST_LOSS and not given.keep:
            slower.append(name)
        print(f"{name:18} {found['ratio']:.3f}  kept {before:.3f}  {change:+.0%}", flush=True)
        if given.keep or name not in ours:
            ours[name] = {**found, "commit": provenance.commit()}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    if slower:
        print(f"slower by more than {MOST_LOSS:.0%}: {', '.join(slower)}", file=sys.stderr)
        print("  run it again on a quiet machine; --keep accepts the ratios", file=sys.stderr)
    return bool(slower)


if __name__ == "__main__":
    raise SystemExit(main())
