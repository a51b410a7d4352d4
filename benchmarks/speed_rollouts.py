"""Breakout agent steps per second of A2C and PPO against Stable-Baselines3's.

    make bench-rollouts

A round runs, one process at a time: ours with `--network.precision auto`, ours in float32, and
theirs with each of its two vector environments. The next round runs them in reverse order. A ratio
is the median over the rounds, against their vector environment with the better median.
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
OURS = {"ours": "auto", "ours in float32": "float32"}
PEERS = {"peer, dummy": "dummy", "peer, subproc": "subproc"}


def ours(name: str, precision: str) -> dict[str, Any]:
    """Runs the real command; returns its summary and the precision it used."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = (
            f"-m manyhands train breakout {FLAGS[name]} --steps {STEPS[name]} --out {out} --quiet "
            "--network.channels 32,64,64 --network.hidden 512 "
            f"--evaluation.period-steps 0 --checkpoint.replay false --network.precision {precision}"
        )
        subprocess.run([sys.executable, *command.split()], check=True)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        network = json.loads((out / "config.json").read_text())["config"]["network"]
    return {**summary, "precision": network["precision"]}


def peer(python: str, name: str, vector: str, steps: int) -> float:
    command = [python, str(HERE / "peer_sb3_rollouts.py"), name, vector, str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rate: float = json.loads(done.stdout.splitlines()[-1])["agent_steps_per_s"]
    return rate


def compare(name: str, rounds: int, python: str) -> dict[str, Any]:
    rows, found = [], dict[str, Any]()
    for number in range(rounds):
        row: dict[str, float] = {}
        for way in [*OURS, *PEERS][:: 1 if number % 2 == 0 else -1]:
            if way in OURS:
                found[way] = ours(name, OURS[way])
                row[way] = found[way]["agent_steps_per_s"]
            else:
                row[way] = peer(python, name, PEERS[way], STEPS[name])
        rows.append(row)
        print(name, {way: round(rate) for way, rate in row.items()}, flush=True)
    median = {way: statistics.median(row[way] for row in rows) for way in rows[0]}
    better = max(PEERS, key=lambda way: median[way])
    ratios = {f"{way} / peer": [row[way] / row[better] for row in rows] for way in OURS}
    result = {
        "settings": SETTINGS[name],
        "bar": BAR,
        "ratio": {way: statistics.median(each) for way, each in ratios.items()},
        "precision": {way: summary["precision"] for way, summary in found.items()},
        "peer": better,
        "agent_steps_per_s": median,
        "ratios": ratios,
        "rounds": rows,
        "time_split": {way: summary["time_split"] for way, summary in found.items()},
    }
    print(name, better, result["ratio"], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from manyhands.runs import provenance

    results = {
        "command": "make bench-rollouts",
        "commit": provenance.commit(),
        "machine": machine(),
        "reference": "Stable-Baselines3 2.9.2, agent steps per second on Breakout",
        **{name: compare(name, options.rounds, options.peer_python) for name in STEPS},
    }
    path = HERE / "results" / "speed-rollouts.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"-> {path}")


if __name__ == "__main__":
    main()
