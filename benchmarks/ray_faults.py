"""How soon a killed node is noticed, its actors work elsewhere, and a node that comes is used.

    python benchmarks/ray_faults.py [--rounds 4]

Two actors are on a node of their own; another node has room for as many. In each round the raylet
of the actors' node is killed, without notice, and later a node comes back: first where there is
room, so that the actors move at once, then where there is none, so that they wait for the new node.
Times are as status.json and faults.jsonl show them, which are written once a second. Writes
benchmarks/results/ray-faults.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

from ray_cluster import Book, Row, Training, add_node, cluster, training

AWAY, MOST_S = 2, 90.0
GOALS = {"noticed_s": 5.0, "elsewhere_s": 15.0, "used_s": 10.0}
WORDS = (
    "cartpole --recipe distributed-dqn --actors 2 --minutes 30 --checkpoint.replay false "
    "--evaluation.period-steps 0"
)


def measure(rounds: int) -> Row:
    rows: list[Row] = []
    with cluster(1, AWAY, AWAY) as nodes, training(WORDS, nodes.address) as run:
        run.wait_for(lambda: run.status["updates"] > 50 and len(run.away()) == AWAY, most_s=MOST_S)
        for _ in range(rounds):
            lost = Lost(nodes, run)
            row = {"noticed_s": lost.noticed_s(), "elsewhere_s": lost.work_again_s()}
            lost = Lost(nodes, run)  # now no node has room
            run.wait_for(lambda: not run.away(), most_s=MOST_S)
            came_s = time.monotonic()
            add_node(nodes, AWAY)
            lost.work_again_s()
            row["used_s"] = time.monotonic() - came_s
            add_node(nodes, AWAY)
            rows.append({name: round(found, 1) for name, found in row.items()})
            print(rows[-1], flush=True)
        run.interrupt()
        nodes_lost = run.summary()["faults"]["nodes_lost"]
    medians = {name: statistics.median(row[name] for row in rows) for name in GOALS}
    return {
        "run": f"manyhands train {WORDS}",
        "rounds": rows,
        "nodes_lost": nodes_lost,
        "median": medians,
        "goals": GOALS,
        "goals_met": {name: medians[name] <= goal for name, goal in GOALS.items()},
    }


class Lost:
    """The node of the actors, killed now."""

    def __init__(self, nodes: Any, run: Training) -> None:
        self._run, self._causes = run, len(run.causes())
        away = run.away()
        name = away[0]["node"]
        self._incarnations = {a["id"]: a["incarnation"] for a in away if a["node"] == name}
        id = name.partition("(")[2].rstrip(")")
        node = next(node for node in nodes.list_all_nodes() if node.node_id.startswith(id))
        self._since_s = time.monotonic()
        nodes.remove_node(node, allow_graceful=False)

    def noticed_s(self) -> float:
        self._run.wait_for(lambda: len(self._run.causes()) > self._causes, most_s=MOST_S)
        return time.monotonic() - self._since_s

    def work_again_s(self) -> float:
        """Until its actors were started again, and steps were made after that."""
        self._run.wait_for(self._are_back, most_s=MOST_S)
        steps = self._run.steps
        self._run.wait_for(lambda: self._run.steps > steps, most_s=MOST_S)
        return time.monotonic() - self._since_s

    def _are_back(self) -> bool:
        there = {actor["id"]: actor["incarnation"] for actor in self._run.away()}
        return all(there.get(id, 0) > before for id, before in self._incarnations.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    load = os.getloadavg()[0]
    Book("ray-faults").keep("raylet killed", load_before=load, **measure(rounds))


if __name__ == "__main__":
    main()
