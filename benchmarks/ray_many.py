"""300 actors on three nodes of this machine: more than one backend `processes` may have.

    python benchmarks/ray_many.py [--actors 300] [--steps 90000]

Each node has a third of them, with one CartPole each; the learner is on main's node. A step waits
a second, so that the first actors have not made all steps before the last ones run. Writes
benchmarks/results/ray-many.json: the start, the counts, the memory, and what is left afterwards.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from pathlib import Path

import psutil

from ray_cluster import Book, Row, cluster, training

MARKER = "MANYHANDS_TRACE"  # an environment variable of all processes
START_S, GONE_S, LOOK_S = 1_200.0, 20.0, 0.2


def measure(actors: int, steps: int) -> Row:
    os.environ[MARKER] = secrets.token_hex(8)
    before = set(Path("/dev/shm").iterdir())
    words = (
        f"cartpole --recipe distributed-dqn --actors {actors} --envs-per-worker 1 --steps {steps} "
        "--env.wait-ms 1000 --checkpoint.replay false --evaluation.period-steps 0 --hang-s 900"
    )
    each = actors // 3
    with (
        cluster(1 + actors - 2 * each, each, each) as nodes,
        training(words, nodes.address) as run,
    ):
        start_s = run.wait_for(lambda: len(run.running("actor")) == actors, most_s=START_S)
        nodes_used = {actor["node"] for actor in run.running("actor")}
        pss_mb = sum(_pss_mb(process["pid"]) for process in run.status["workers"])
        summary = run.summary()
        by_actor = [p["agent_steps"] for p in run.status["workers"] if p["role"] == "actor"]
    left = _left()
    return {
        "run": f"manyhands train {words}",
        "actors": actors,
        "nodes": len(nodes_used),
        "all_running_s": round(start_s, 1),
        "asked_steps": steps,
        "agent_steps": summary["agent_steps"],
        "steps_of_actors_in_last_status": {
            "least": min(by_actor),
            "most": max(by_actor),
            "sum": sum(by_actor),
        },
        "updates": summary["updates"],
        "restarts": summary["faults"]["restarts"],
        "processes_pss_mb": round(pss_mb),
        "processes_left": left,
        "files_left_in_shared_memory": len(set(Path("/dev/shm").iterdir()) - before),
    }


def _pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def _left() -> int:
    """Processes of the run or of Ray that are still there after some seconds."""
    deadline = time.monotonic() + GONE_S
    while (left := _marked()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return left


def _marked() -> int:
    count = 0
    for process in psutil.process_iter():
        try:
            is_marked = process.environ().get(MARKER) == os.environ[MARKER]
        except psutil.Error:
            continue
        count += is_marked and process.pid != os.getpid()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--actors", type=int, default=300)
    parser.add_argument("--steps", type=int, default=90_000)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(given.actors, given.steps)
    Book("ray-many").keep(f"{given.actors} actors", load_before=load, **found)


if __name__ == "__main__":
    main()
