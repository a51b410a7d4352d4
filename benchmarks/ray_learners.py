"""Learners on two nodes of this machine against one: speed, and whether they learn.

    python benchmarks/ray_learners.py [speed] [learning] [--seconds 6] [--pairs 5] [CASE …]

`speed`: as many workers on one node and on two; agent steps and updates per second. Both runs take
turns as in ray_speed.py. A case is a recipe and a network. Writes results/ray-learners.json.
`learning`: training on two nodes until the mean of the last 100 episodes reaches the task's
threshold; CartPole with seeds 1, 2 and 3, LunarLander with seed 1. Writes
results/ray-learners-learning.json. Without either word it does both. A cell that is there is not
repeated.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys

import ray_speed
from ray_cluster import Book, Row, cluster, training

GOAL = 0.85
RECIPES = ("downpour", "sync", "ad-psgd", "gala", "hogwild-plus-plus", "dogwild")
NETWORKS = {"lunarlander": "lunarlander", "nature": "breakout --dqn.warmup-steps 1000"}
CASES = {
    f"{recipe} {name}": f"{task} --recipe {recipe} --workers 2"
    for recipe in RECIPES
    for name, task in NETWORKS.items()
}
NODES = {"one node": "3", "two nodes": "2,1"}  # CPUs: a worker each, and the shard
LEARNING = {"cartpole": (1, 2, 3), "lunarlander": (1,)}
KEPT = (
    *("agent_steps", "updates", "gradients", "episodes", "wall_s", "return_mean_100", "solved"),
    *("staleness", "faults", "nodes"),
)


def commands(words: str) -> ray_speed.Commands:
    all_words = [*words.split(), *ray_speed.ALL.split()]
    return {
        name: [sys.executable, __file__, "--on", cpus, "--", *all_words]
        for name, cpus in NODES.items()
    }


def run_on(cpus: str, words: list[str]) -> int:
    """Trains on a cluster with these CPUs, until it is interrupted."""
    with cluster(*map(int, cpus.split(","))) as nodes:
        how = ["--backend", "ray", "--ray.address", nodes.address]
        main = subprocess.Popen([sys.executable, "-m", "manyhands", "train", *words, *how])
        try:
            return main.wait()
        except KeyboardInterrupt:
            main.send_signal(signal.SIGINT)
            return main.wait()


def learned(task: str, recipe: str, seed: int) -> Row:
    """On two nodes with two workers each."""
    words = f"{task} --recipe {recipe} --workers 4 --seed {seed} --until-solved"
    with cluster(3, 2) as nodes, training(words, nodes.address) as run:
        found = run.summary()
        return {"run": f"manyhands train {words}", **{name: found[name] for name in KEPT}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="speed, learning or a case")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--on", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.on:
        raise SystemExit(run_on(given.on, given.words))
    asked = [word for word in given.words if word in ("speed", "learning")]
    cases = [word for word in given.words if word not in asked] or list(CASES)
    if "speed" in asked or not asked:
        book = Book("ray-learners")
        for case in [case for case in cases if case not in book]:
            load, arms = os.getloadavg()[0], commands(CASES[case])
            found = ray_speed.measure(CASES[case], arms, given.pairs, given.seconds, goal=GOAL)
            book.keep(case, load_before=load, **found)
    if "learning" in asked or not asked:
        book = Book("ray-learners-learning")
        for cell in [
            f"{task} {r} {n}" for r in RECIPES for task, ns in LEARNING.items() for n in ns
        ]:
            if cell not in book:
                task, recipe, seed = cell.split()
                load = os.getloadavg()[0]
                book.keep(cell, load_before=load, **learned(task, recipe, int(seed)))


if __name__ == "__main__":
    main()
