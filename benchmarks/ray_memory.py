"""Ten minutes of Breakout on two nodes: is the memory of each process and object store flat?

    python benchmarks/ray_memory.py [--minutes 10]

The replay is small and soon full. Every quarter of a minute the private memory of each process is
read, and the shared memory of the raylets, which is their object stores. "before" is the mean of
the third minute, "after" that of the last. Writes benchmarks/results/ray-memory.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import psutil

from ray_cluster import Book, Row, Training, cluster, training

PERIOD_S, FIRST_S, SPAN_S = 15.0, 120.0, 60.0
WORDS = (
    "breakout --recipe distributed-dqn --actors 2 --minutes 60 --memory.capacity 10000 "
    "--dqn.warmup-steps 1000 --network.precision float32 --checkpoint.replay false "
    "--evaluation.period-steps 0"
)
MOST_GROWTH_MB, MOST_GROWTH = 8.0, 0.03


def memory(run: Training) -> Row:
    """MB by process."""
    found: Row = {}
    for process in run.status["workers"]:
        found[f"{process['role']} {process['id']}"] = _mb(process["pid"], "RssAnon")
    found["main"] = _mb(run.main.pid, "RssAnon")
    for process in psutil.Process().children(recursive=True):
        title = Path(process.cmdline()[0]).name if process.is_running() else ""
        name = title.partition(".")[0]  # Ray adds the method that runs
        if name in ("raylet", "gcs_server") or "NodeRunner" in name:
            label = f"{name} {process.pid}"
            found[label] = _mb(process.pid, "RssAnon")
            if name == "raylet":
                found[f"object store of {label}"] = _mb(process.pid, "RssShmem")
    return found


def _mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measure(minutes: float) -> Row:
    with cluster(1, 2) as nodes, training(WORDS, nodes.address) as run:
        folders = [Path(node.get_session_dir_path()) for node in nodes.list_all_nodes()]
        run.wait_for(lambda: run.status["updates"] > 50, most_s=300)
        began_s, samples = time.monotonic(), list[tuple[float, Row]]()
        while (passed_s := time.monotonic() - began_s) < 60 * minutes:
            samples.append((passed_s, memory(run)))
            time.sleep(PERIOD_S)
        status = run.status
        spilled = [file for each in folders for file in each.rglob("ray_spilled*/*")]
        run.interrupt()
    before = _means(samples, FIRST_S, FIRST_S + SPAN_S)
    after = _means(samples, 60 * minutes - SPAN_S, 60 * minutes)
    return {
        "run": f"manyhands train {WORDS}",
        "minutes": minutes,
        "agent_steps": status["agent_steps"],
        "updates": status["updates"],
        "before_mb": before,
        "after_mb": after,
        "files_spilled": len(spilled),
        "flat": all(
            after[name] - mb <= max(MOST_GROWTH_MB, MOST_GROWTH * mb) for name, mb in before.items()
        ),
    }


def _means(samples: list[tuple[float, Row]], start_s: float, stop_s: float) -> Row:
    some = [row for passed_s, row in samples if start_s <= passed_s <= stop_s]
    return {name: round(statistics.mean(row[name] for row in some), 1) for name in some[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    load = os.getloadavg()[0]
    Book("ray-memory").keep("two nodes", load_before=load, **measure(minutes))


if __name__ == "__main__":
    main()
