"""How fast are the Snake boards? Steps per second of 256 boards of 8x8, on one core.

    .venv/bin/python benchmarks/snake_speed.py

Moves are random and drawn beforehand. Such games are short, so many boards reset at every step:
the most expensive case. Writes benchmarks/results/snake-speed.json: every round, in steps per
second of wall and of CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from manyhands.envs.snake import ACTIONS, Snake
from manyhands.runs import provenance
from speed import machine

RESULTS = Path(__file__).parent / "results"
BAR = 500_000


def one(boards: int, board: int, steps: int, seed: int) -> dict[str, float]:
    env = Snake(boards, board, np.random.SeedSequence(seed))
    actions, ended = np.random.default_rng(seed).integers(ACTIONS, size=(steps, boards)), 0
    env.reset()
    wall, cpu = time.perf_counter(), time.process_time()
    for action in actions:
        ended += int(env.step(action).ended.sum())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    taken = steps * boards
    return {
        "steps_per_s": round(taken / wall),
        "steps_per_cpu_s": round(taken / cpu),
        "steps_per_game": round(taken / max(1, ended), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boards", type=int, default=256)
    parser.add_argument("--board", type=int, default=8, help="cells per side")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of all boards in a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    one(given.boards, given.board, 200, seed=0)
    rounds = [one(given.boards, given.board, given.steps, seed + 1) for seed in range(given.rounds)]
    middle = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    about = {"commit": provenance.commit(), "machine": machine(), "boards": given.boards}
    written = {**about, "board": given.board, "bar": BAR, "median": middle, "rounds": rounds}
    (RESULTS / "snake-speed.json").write_text(json.dumps(written, indent=1) + "\n")
    print(middle)


if __name__ == "__main__":
    main()
