"""Does it learn on two nodes? Trains with actors on both nodes of a cluster on this machine.

    python benchmarks/ray_learning.py [CELL …]

CartPole by each recipe with actors, seeds 1, 2 and 3; LunarLander by two recipes while the second
node is killed and replaced twice. Two measures of "solved": the mean of the last 100 episodes of
training, in which actors explore, and the first of three consecutive greedy evaluations (20
episodes each) at or above the threshold. A run ends when the second is reached and both kills were
made, or after its steps; without kills also when the first is reached. At the end 100 greedy games
are played. Writes benchmarks/results/ray-learning.json after every run; a run that is there is not
repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any, NamedTuple

from dyna import evaluations_of, reached
from ray_cluster import Book, Row, Training, add_node, cluster, training

KEPT = ("agent_steps", "updates", "episodes", "wall_s", "return_mean_100", "solved", "faults")
AWAY = 2  # CPUs of the second node: so many actors are there
KILL_AT_STEPS = (20_000, 50_000)
ABSENT_S = 5.0  # until the node comes back
EPISODES = 100


EVALUATED = "--evaluation.period-steps {} --evaluation.episodes 20 --checkpoint.replay false"
EVERY_STEPS = {"cartpole": 5_000, "lunarlander": 10_000}
THRESHOLDS = {"cartpole": 475.0, "lunarlander": 200.0}
LOOK_S = 0.5


class Case(NamedTuple):
    words: str
    main_cpus: int  # for the learners and one actor
    kills: bool = False

    @property
    def task(self) -> str:
        return self.words.split()[0]


CASES = {
    "cartpole distributed-dqn": Case("cartpole --recipe distributed-dqn --actors 3", 2),
    "cartpole apex": Case("cartpole --recipe apex --actors 3 --steps 400000", 2),
    "cartpole impala": Case("cartpole --recipe impala --actors 3 --steps 400000", 2),
    "cartpole gorila": Case("cartpole --recipe gorila --actors 3 --steps 400000", 5),
    "lunarlander distributed-dqn": Case(
        "lunarlander --recipe distributed-dqn --actors 3", 2, kills=True
    ),
    "lunarlander apex": Case("lunarlander --recipe apex --actors 3", 2, kills=True),
}
SEEDS = {"cartpole": (1, 2, 3), "lunarlander": (1,)}


def train(case: Case, seed: int) -> Row:
    words = f"{case.words} --seed {seed} {EVALUATED.format(EVERY_STEPS[case.task])}"
    words += "" if case.kills else " --until-solved"
    with (
        cluster(case.main_cpus, AWAY) as nodes,
        training(words, nodes.address) as run,
    ):
        killed: list[Row] = []
        if case.kills:
            threading.Thread(target=_kill_and_replace, args=(nodes, run, killed)).start()
        else:
            killed = [{}] * len(KILL_AT_STEPS)
        greedy = _until_greedy(case, run, killed)
        found = run.summary()
        nodes_used = len(found["nodes"])
        return {
            "run": f"manyhands train {words}",
            **{name: found[name] for name in KEPT},
            "solved_greedily": greedy and {"agent_steps": greedy},
            "evaluations": evaluations_of(run.out),
            "nodes": nodes_used,
            **({"killed": killed} if case.kills else {}),
            "evaluation": _evaluated(run),
        }


def _until_greedy(case: Case, run: Training, killed: list[Row]) -> int | None:
    """Ends the run then. Returns the agent steps at the first of the evaluations; None: never."""
    while True:
        is_over = run.main.poll() is not None
        found = reached(evaluations_of(run.out), THRESHOLDS[case.task])
        if is_over or (found and len(killed) == len(KILL_AT_STEPS)):
            break
        time.sleep(LOOK_S)
    if not is_over:
        run.interrupt()
    return found


def _kill_and_replace(nodes: Any, run: Training, killed: list[Row]) -> None:
    """When the run has made so many steps. Notes when the actors of the node work again."""
    for steps in KILL_AT_STEPS:
        while run.steps < steps:
            if run.main.poll() is not None:
                return
            time.sleep(0.2)
        had = {actor["id"]: actor["incarnation"] for actor in run.away()}
        nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)
        at_steps = run.steps
        time.sleep(ABSENT_S)
        add_node(nodes, AWAY)
        back_s = run.wait_for(partial(_work_again, run, had), most_s=300)
        killed.append({"at_steps": at_steps, "actors": len(had), "work_again_s": round(back_s, 1)})


def _work_again(run: Training, had: dict[str, int]) -> bool:
    """Whether these actors, by incarnation, were started again on a node that is not main's."""
    there = {actor["id"]: actor["incarnation"] for actor in run.away()}
    return all(there.get(id, 0) > before for id, before in had.items())


def _evaluated(run: Training) -> Row:
    words = ["evaluate", str(run.out), "--json", "--episodes", str(EPISODES)]
    done = subprocess.run(
        [sys.executable, "-m", "manyhands", *words], check=True, capture_output=True, text=True
    )
    score = json.loads(done.stdout.splitlines()[-1])
    return {name: score[name] for name in ("episodes", "mean", "std")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CELL", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, nargs="+")
    book, given = Book("ray-learning"), parser.parse_args()
    for name in given.cases or CASES:
        for seed in given.seeds or SEEDS[CASES[name].task]:
            if (cell := f"{name} {seed}") not in book:
                load = os.getloadavg()[0]
                book.keep(cell, load_before=load, **train(CASES[name], seed))


if __name__ == "__main__":
    main()
