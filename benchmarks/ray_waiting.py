"""Many actors on two nodes of this machine, whose environments wait 5 ms a step.

    python benchmarks/ray_waiting.py [--seconds 3] [--rounds 4]

One run has 32 actors, 16 on each node. In every round one, 16 and 32 of them step while the others
are stopped. Writes benchmarks/results/ray-waiting.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time

from ray_cluster import Book, Row, Training, cluster, training

ACTORS, BATCH = 32, 32
GOALS = {16: 14.0, 32: 24.0}
SETTLE_S, START_S = 0.5, 120.0
WORDS = (
    f"toy/slow --recipe distributed-dqn --actors {ACTORS} --envs-per-worker 1 --threads 1 "
    f"--dqn.batch-size {BATCH} --dqn.steps-per-update {BATCH} --dqn.warmup-steps {2 * BATCH} "
    f"--memory.capacity {1000 * ACTORS} --checkpoint.replay false --minutes 30 --hang-s 900 "
    "--evaluation.period-steps 0"
)


def chosen(run: Training, count: int) -> list[int]:
    """As many on either node."""
    here = [actor["pid"] for actor in run.running("actor")]
    away = [actor["pid"] for actor in run.away()]
    here = [pid for pid in here if pid not in away]
    return [*here[: count - count // 2], *away[: count // 2]]


def rate(run: Training, pids: list[int], seconds: float) -> float:
    """Agent steps per second while only these actors step."""
    everyone = [actor["pid"] for actor in run.running("actor")]
    _signal(signal.SIGCONT, pids)
    time.sleep(SETTLE_S)
    first = _next(run)
    time.sleep(seconds)
    last = _next(run)
    _signal(signal.SIGSTOP, everyone)
    return float((last["agent_steps"] - first["agent_steps"]) / (last["wall_s"] - first["wall_s"]))


def _next(run: Training) -> Row:
    before = run.status["wall_s"]
    run.wait_for(lambda: bool(run.status["wall_s"] != before), most_s=START_S)
    return run.status


def _signal(number: int, pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


def measure(rounds: int, seconds: float) -> Row:
    counts = (1, *GOALS)
    with cluster(1 + ACTORS // 2, ACTORS // 2) as nodes, training(WORDS, nodes.address) as run:
        start_s = run.wait_for(
            lambda: len(run.running("actor")) == ACTORS and run.status["updates"] > 50,
            most_s=START_S,
        )
        pids = {count: chosen(run, count) for count in counts}
        _signal(signal.SIGSTOP, pids[ACTORS])
        rows = []
        for number in range(rounds):
            order = counts[::-1] if number % 2 else counts
            found = {count: rate(run, pids[count], seconds) for count in order}
            rows.append({str(count): round(found[count], 1) for count in counts})
            print(rows[-1], flush=True)
        away = len(run.away())
    times = {n: statistics.median(row[str(n)] / row["1"] for row in rows) for n in GOALS}
    return {
        "run": f"manyhands train {WORDS}",
        "start_s": round(start_s, 1),
        "actors_on_other_node": away,
        "agent_steps_per_s": rows,
        "times_one": {str(n): round(times[n], 2) for n in GOALS},
        "goals": {str(n): goal for n, goal in GOALS.items()},
        "goals_met": {str(n): times[n] >= goal for n, goal in GOALS.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    Book("ray-waiting").keep("two nodes", load_before=load, **measure(given.rounds, given.seconds))


if __name__ == "__main__":
    main()
