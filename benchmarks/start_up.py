"""How long does it take to begin: `--help`, the first update, and many worker processes.

    make bench-start-up

Seconds are counted from the start of the process. A worker is ready when it has made an agent step.
PSS is the proportional set size: a page that n processes share counts for one nth in each.
Writes benchmarks/results/start-up.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
BARS = {"help_s": 0.15, "first_update_s": 3.0, "second_after_first_s": 0.5, "all_of_32_s": 10.0}
LOOK_S = 0.002


def help_s() -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "manyhands", "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def watched(workers: int) -> dict[str, Any]:
    """Runs in its own process: trains CartPole, and looks when each worker has begun."""
    import psutil

    import manyhands as mh
    from manyhands.roles import counters

    began_s = psutil.Process().create_time()
    with tempfile.TemporaryDirectory() as folder:
        more: dict[str, Any] = {"recipe": "hogwild", "workers": workers} if workers > 1 else {}
        run = mh.Run("cartpole", out=f"{folder}/run", steps=10**9, seed=0, **more)
        opened_s, ready, first = time.time() - began_s, [0.0] * workers, [0.0]
        enough = threading.Event()

        def look() -> None:
            while not (all(ready) and first[0]) and not enough.is_set():
                steps = run.workers.counters.rows()[:, counters.STEPS]
                now_s = time.time() - began_s
                for rank in range(workers):
                    ready[rank] = ready[rank] or (now_s if steps[rank] else 0.0)
                first[0] = first[0] or (now_s if run.workers.updates else 0.0)
                time.sleep(LOOK_S)

        looker = threading.Thread(target=look)
        looker.start()
        pss: list[float] = []
        for _ in run:
            if not looker.is_alive():
                pss = [pss_mb(child.pid) for child in psutil.Process().children()]
                break
        enough.set()
        return {
            "opened_s": opened_s,
            "first_update_s": first[0],
            "ready_s": sorted(ready),
            "pss_mb": sum(pss) / workers,  # of all children: also of the one that forks them
        }


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def fresh(workers: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--watched", str(workers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(rounds: int) -> dict[str, Any]:
    helps = [help_s() for _ in range(3 * rounds)]
    serial = [fresh(1)["first_update_s"] for _ in range(rounds)]
    two, many = [fresh(2) for _ in range(rounds)], fresh(32)
    return {
        "help_s": statistics.median(helps),
        "first_update_s": statistics.median(serial),
        "first_worker_s": statistics.median(row["ready_s"][0] for row in two),
        "second_after_first_s": statistics.median(r["ready_s"][1] - r["ready_s"][0] for r in two),
        "all_of_32_s": many["ready_s"][-1],
        "pss_of_one_of_2_mb": statistics.median(row["pss_mb"] for row in two),
        "pss_of_one_of_32_mb": many["pss_mb"],
        "rounds": {"help_s": helps, "first_update_s": serial, "two": two, "thirty_two": many},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watched", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watched:
        print(json.dumps(watched(given.watched)))
        return
    from manyhands.runs import provenance
    from speed import machine

    found = measured(given.rounds)
    about = {"command": "make bench-start-up", "commit": provenance.commit(), "machine": machine()}
    written = {**about, "bars": BARS, **found}
    (RESULTS / "start-up.json").write_text(json.dumps(written, indent=1) + "\n")
    for name, value in found.items():
        if isinstance(value, float):
            bar = f"  (bar: {BARS[name]:g})" if name in BARS else ""
            print(f"{name:24} {value:8.2f}{bar}")


if __name__ == "__main__":
    main()
