"""Breakout agent steps per second of A2C and PPO against Stable-Baselines3's.

    make bench-rollouts

Interleaved pairs on the same cores, one process at a time; the ratio is the median of the pairs'.
Stable-Baselines3 runs with whichever of its two vector environments was faster in a first look.
Writes benchmarks/results/speed-rollouts.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from speed import machine

HERE = Path(__file__).parent
STEPS = {"a2c": 6_000, "ppo": 6_144}
FLAGS = {
    "a2c": "--recipe paac --envs-per-worker 16 --a2c.rollout-steps 5",
    "ppo": "--recipe ppo --envs-per-worker 8 --ppo.rollout-steps 128 --ppo.epochs 4 "
    "--ppo.minibatches 4",
}
SETTINGS = {
    "a2c": "16 environments x 5 steps, RMSprop",
    "ppo": "8 environments x 128 steps, 4 epochs of 4 minibatches, Adam",
}
BAR = 2.0


def ours(name: str) -> dict[str, Any]:
    """The real command, its rate from its own summary."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = (
            f"-m manyhands train breakout {FLAGS[name]} --steps {STEPS[name]} --out {out} --quiet "
            "--network.channels 32,64,64 --network.hidden 512 "
            "--evaluation.period-steps 0 --checkpoint.replay false"
        )
        subprocess.run([sys.executable, *command.split()], check=True)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def peer(python: str, name: str, vector: str, steps: int) -> float:
    command = [python, str(HERE / "peer_sb3_rollouts.py"), name, vector, str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rate: float = json.loads(done.stdout.splitlines()[-1])["agent_steps_per_s"]
    return rate


def compare(name: str, pairs: int, python: str) -> dict[str, Any]:
    look = {vector: peer(python, name, vector, STEPS[name] // 3) for vector in ("dummy", "subproc")}
    better = max(look, key=lambda vector: look[vector])
    rows = []
    for pair in range(pairs):
        row: dict[str, float] = {}
        for who in ("ours", "peer") if pair % 2 == 0 else ("peer", "ours"):
            if who == "peer":
                row["peer"] = peer(python, name, better, STEPS[name])
            else:
                summary = ours(name)
                row["ours"] = summary["agent_steps_per_s"]
        row["ratio"] = row["ours"] / row["peer"]
        rows.append(row)
        print(name, better, {key: round(value, 2) for key, value in row.items()}, flush=True)
    return {
        "settings": SETTINGS[name],
        "bar": BAR,
        "peer_vector_environments": look,
        "median": {key: statistics.median(row[key] for row in rows) for key in rows[0]},
        "pairs": rows,
        "time_split": summary["time_split"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    from manyhands import rundir

    results = {
        "command": "make bench-rollouts",
        "commit": rundir.commit(),
        "machine": machine(),
        "reference": "Stable-Baselines3 2.9.2, agent steps per second on Breakout",
        **{name: compare(name, options.pairs, options.peer_python) for name in STEPS},
    }
    path = HERE / "results" / "speed-rollouts.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"-> {path}")


if __name__ == "__main__":
    main()
