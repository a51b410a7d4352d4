"""Breakout agent steps per second of A2C and PPO against Stable-Baselines3's.

    make bench-rollouts

Rounds on the same cores, one process at a time: ours as it comes (`--network.precision auto`), ours
in float32, theirs with each of its two vector environments; and in the next one backwards. A ratio
is the median of the rounds', against the vector environment whose own median is the better.
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
    """The real command: its summary, and the precision it computed in."""
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
        for who in [*OURS, *PEERS][:: 1 if number % 2 == 0 else -1]:
            if who in OURS:
                found[who] = ours(name, OURS[who])
                row[who] = found[who]["agent_steps_per_s"]
            else:
                row[who] = peer(python, name, PEERS[who], STEPS[name])
        rows.append(row)
        print(name, {who: round(rate) for who, rate in row.items()}, flush=True)
    median = {who: statistics.median(row[who] for row in rows) for who in rows[0]}
    better = max(PEERS, key=lambda who: median[who])
    ratios = {f"{who} / peer": [row[who] / row[better] for row in rows] for who in OURS}
    result = {
        "settings": SETTINGS[name],
        "bar": BAR,
        "ratio": {who: statistics.median(each) for who, each in ratios.items()},
        "precision": {who: summary["precision"] for who, summary in found.items()},
        "peer": better,
        "agent_steps_per_s": median,
        "ratios": ratios,
        "rounds": rows,
        "time_split": {who: summary["time_split"] for who, summary in found.items()},
    }
    print(name, better, result["ratio"], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from manyhands import rundir

    results = {
        "command": "make bench-rollouts",
        "commit": rundir.commit(),
        "machine": machine(),
        "reference": "Stable-Baselines3 2.9.2, agent steps per second on Breakout",
        **{name: compare(name, options.rounds, options.peer_python) for name in STEPS},
    }
    path = HERE / "results" / "speed-rollouts.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"-> {path}")


if __name__ == "__main__":
    main()
