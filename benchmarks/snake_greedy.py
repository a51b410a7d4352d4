"""How well does a greedy player play Snake? The reference for trained networks.

    .venv/bin/python benchmarks/snake_greedy.py --games 200

It takes the first step of a shortest path to the apple (breadth first, around the present body), or
any safe step if there is no path. The seed breaks ties. It never plans further ahead, so it traps
itself. Writes benchmarks/results/snake-greedy.json.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.envs.snake import SnakeEnv

RESULTS = Path(__file__).parent / "results"
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
Cell = tuple[int, int]


def neighbours(cell: Cell, free: np.ndarray) -> list[tuple[int, Cell]]:
    """(action, cell) of the free neighbours of a cell."""
    around = [(cell[0] + down, cell[1] + right) for down, right in MOVES]
    inside = [all(0 <= at < len(free) for at in one) for one in around]
    return [(a, one) for a, one in enumerate(around) if inside[a] and free[one]]


def distances(goal: Cell, free: np.ndarray) -> np.ndarray:
    """Steps to the goal from every cell; infinity without a path."""
    steps = np.full(free.shape, np.inf)
    steps[goal] = 0
    waiting = deque([goal])
    while waiting:
        cell = waiting.popleft()
        for _, near in neighbours(cell, free):
            if steps[near] == np.inf:
                steps[near] = steps[cell] + 1
                waiting.append(near)
    return steps


def greedy(seen: np.ndarray, rng: np.random.Generator) -> int:
    """The action for an observation of one board."""
    head, body, apple, order = seen
    free = body == 0
    free[order == order[order > 0].min()] = True  # the tail moves away as the head arrives
    at: Cell = tuple(np.argwhere(head)[0].tolist())
    steps = distances(tuple(np.argwhere(apple)[0].tolist()), free)
    safe = neighbours(at, free)
    if not safe:
        return int(rng.integers(4))
    least = min(steps[cell] for _, cell in safe)
    return int(rng.choice([action for action, cell in safe if steps[cell] == least]))


def score(env: SnakeEnv, seed: int) -> float:
    """The return of one game: apples, less one for dying."""
    rng, total, over = np.random.default_rng(seed), 0.0, False
    seen, _ = env.reset(seed=seed)
    while not over:
        seen, reward, terminated, truncated, _ = env.step(np.int64(greedy(seen, rng)))
        total, over = total + reward, terminated or truncated
    return total


def measured(board: int, games: int) -> dict[str, Any]:
    scores = [score(SnakeEnv(board=board), seed) for seed in range(games)]
    return {
        "board": board,
        "games": games,
        "mean": round(float(np.mean(scores)), 2),
        "std": round(float(np.std(scores)), 2),
        "min": min(scores),
        "max": max(scores),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=200)
    parser.add_argument("--boards", type=int, nargs="+", default=[6, 8])
    options = parser.parse_args()
    rows = [measured(board, options.games) for board in options.boards]
    for row in rows:
        print(row)
    RESULTS.mkdir(exist_ok=True)
    written = {"player": "greedy", "score": "apples, less one for dying", "boards": rows}
    (RESULTS / "snake-greedy.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
