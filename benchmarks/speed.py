"""Updates per second against Stable-Baselines3 and against the machine's own limit.

    make bench

Interleaved pairs on the same cores, one process at a time. The ratio is the median over the pairs.
Writes benchmarks/results/speed.json; other tasks keep their entries there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
UPDATES = {"breakout": 1_200, "lunarlander": 4_000}
BARS = {"breakout": 2.0, "lunarlander": 1.7}
SETTINGS = {
    "breakout": "batch 32, one update per 4 agent steps, Adam, 100k replay, 32 environments",
    "lunarlander": "256x256, batch 128, one update per agent step, 1 environment, two threads",
}
FLAGS = {
    "breakout": "--envs-per-worker 32 --dqn.steps-per-update 4 --dqn.batch-size 32 "
    "--memory.capacity 100000 --dqn.n-step 1 --dqn.double false "
    "--network.channels 32,64,64 --network.hidden 512 --network.precision float32",
    "lunarlander": "--envs-per-worker 1 --dqn.steps-per-update 1 --dqn.batch-size 128 "
    "--network.hidden 256,256 --dqn.n-step 1 --dqn.double false --memory.capacity 100000 "
    "--threads 2",
}
WARMUP_STEPS = 1_000
MANY = 400  # updates over which the parts of one are timed


def ours(task: str) -> dict[str, Any]:
    """Runs the real command and reads the rate from its summary."""
    steps = WARMUP_STEPS + UPDATES[task] * (4 if task == "breakout" else 1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = (
            f"-m manyhands train {task} --recipe dqn --steps {steps} --out {out} --quiet "
            f"{FLAGS[task]} "
            f"--dqn.warmup-steps {WARMUP_STEPS} --dqn.epsilon-decay-steps 0 "
            "--evaluation.period-steps 0 --checkpoint.replay false"
        )
        subprocess.run([sys.executable, *command.split()], check=True)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def peer(python: str, task: str) -> float:
    command = [python, str(HERE / "peer_sb3.py"), task, str(UPDATES[task])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rate: float = json.loads(done.stdout.splitlines()[-1])["updates_per_s"]
    return rate


def matmul_peak(threads: int) -> float:
    """The machine's own limit in FLOP/s: the best of many 1024-square products.

    torch's `@` is MKL's, which uses AVX-512 on Intel's processors only: elsewhere it is no limit.
    We take the library that `maths.products` takes.
    """
    import torch

    from manyhands.maths.products import times_transposed

    torch.set_num_threads(threads)
    a = torch.rand(1024, 1024)
    times = []
    for _ in range(60):
        started = time.perf_counter()
        times_transposed(a, a)
        times.append(time.perf_counter() - started)
    return 2 * 1024**3 / min(times)


def update_flops(task: str) -> float:
    """Multiply-adds of one update: two forward passes, one backward (no gradient of the input)."""
    if task == "breakout":
        layers = [(400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 512), (1, 512, 4)]
        batch = 32
    else:
        layers = [(1, 8, 256), (1, 256, 256), (1, 256, 4)]
        batch = 128
    forward = [2 * batch * places * inputs * outputs for places, inputs, outputs in layers]
    return 4 * sum(forward) - forward[0]


def draw_against_gradient() -> dict[str, float]:
    """Milliseconds of drawing a Nature batch from 100k rows, and of its gradient step."""
    import numpy as np
    import torch

    import manyhands as mh
    from manyhands.memory.replay import Replay
    from manyhands.types import Demand

    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        options = {"warmup_steps": 100_000, "steps_per_update": 8}
        nature = {"channels": (32, 64, 64), "hidden": (512,), "precision": "float32"}
        run = mh.Run(
            "breakout", network=nature, recipe="dqn", out=f"{folder}/run", steps=10**9, dqn=options
        )
        worker = run.worker
        replay, demand = worker.memory, worker.algorithm.demand
        assert isinstance(replay, Replay)
        assert isinstance(demand, Demand)
        rng = np.random.default_rng(0)
        # The content of the rows does not matter: we measure memory access.
        for name in ("frame", "action", "reward"):
            array = replay.lanes.arrays[name]
            array[...] = rng.integers(0, 4, array.shape[:2]).reshape(
                array.shape[:2] + (1,) * (array.ndim - 2)
            )
        replay.lanes.arrays["discount"][...] = 1
        replay.lanes.written[:] = replay.lanes.rows
        replay.steps_seen = 10**7
        replay.updates_drawn = replay._updates_due(demand) - MANY
        worker.stopwatch.begin()
        worker.learner.step(0)
        spent = worker.stopwatch.seconds
        worker.env.close()
    draw = 1e3 * spent["sample"] / MANY
    gradient = 1e3 * (spent["gradient"] + spent["push"]) / MANY
    return {"draw_ms": draw, "gradient_step_ms": gradient, "ratio": draw / gradient}


def replay_bytes() -> int:
    from manyhands import memory
    from manyhands.types import EnvSpec

    spec = EnvSpec("breakout", 8, (84, 84), "uint8", 4, 4, 4)
    return memory.bytes_needed(spec, 1_000_000, {})


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    return {"cpu": model or platform.processor(), "cores": os.cpu_count(), "os": platform.system()}


def compare(task: str, pairs: int, python: str) -> dict[str, Any]:
    from manyhands.runs import provenance

    rows = []
    for pair in range(pairs):
        order = ("ours", "peer") if pair % 2 == 0 else ("peer", "ours")
        row: dict[str, float] = {}
        for way in order:
            if way == "peer":
                row["peer"] = peer(python, task)
            else:
                summary = ours(task)
                row["ours"] = summary["updates_per_s"]
        row["ratio"] = row["ours"] / row["peer"]
        row["limit"] = matmul_peak(os.cpu_count() or 1) / update_flops(task)
        row["share_of_limit"] = row["ours"] / row["limit"]
        rows.append(row)
        print(task, {name: round(value, 2) for name, value in row.items()}, flush=True)
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return {
        "commit": provenance.commit(),
        "settings": SETTINGS[task],
        "updates": UPDATES[task],
        "bar": BARS[task],
        "median": middle,
        "pairs": rows,
        "time_split": summary["time_split"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tasks", nargs="+", default=list(UPDATES))
    options = parser.parse_args()
    path = HERE / "results" / "speed.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    results = {
        **{name: kept for name, kept in before.items() if isinstance(kept, dict)},
        "command": "make bench",
        "machine": machine(),
        "reference": "Stable-Baselines3 2.9.2 DQN, updates per second",
        "draw": draw_against_gradient(),
        "million_atari_rows_gb": replay_bytes() / 1e9,
        **{task: compare(task, options.pairs, options.peer_python) for task in options.tasks},
    }
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["draw"]), f"-> {path}")


if __name__ == "__main__":
    main()
