"""Between two nodes: rows per second, cores that it takes, and the age of weights.

    python benchmarks/ray_nodes.py [--seconds 10] [CASE …]

Writers on one node append rows of the size of an Atari row; a reader on main's node counts them. At
the same time the reader posts a vector as long as the Nature network's five times a second, as a
learner does, and the writers measure how old it is when it arrives.

paced   two nodes on this machine, 15,000 rows/s
most    the same, as many rows as there is room for
link    two network namespaces joined by a link of 1 Gb/s (tbf), as many rows as there is room for

Writes benchmarks/results/ray-nodes.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from manyhands.backends.ray import Ray, joining
from manyhands.backends.ray.options import RayOptions
from manyhands.types import Job, Rank
from ray_cluster import Book, Row, cluster

CASES = ("paced", "most", "link")
WRITERS, ROWS, FRAME = 2, 20_000, (84, 84)
ROW_BYTES = FRAME[0] * FRAME[1] + 8
PACE = 15_000  # rows/s
CHUNK = 16  # rows that a writer appends at once
NUMBERS, PUBLISH_S = 1_700_000, 0.2
LINK, LINK_BYTES_PER_S = "1gbit", 125e6


def measure(backend: Ray, seconds: float, pace: float) -> Row:
    kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "frame": ((WRITERS, ROWS, *FRAME), np.dtype(np.uint8)),
        "action": ((WRITERS, ROWS), np.dtype(np.int32)),
        "reward": ((WRITERS, ROWS), np.dtype(np.float32)),
    }
    stream = backend.stream(kinds, writers=WRITERS, fields=1)
    weights = backend.notice(np.zeros(NUMBERS, np.float32), np.zeros(1))
    channel, over = backend.channel(1000), backend.table(1, 1, np.dtype(np.int64))

    def write(rank: Rank) -> Iterator[None]:
        head, frames = stream.heads.row(rank.index), np.zeros((CHUNK, *FRAME), np.uint8)
        vector, posted, number = np.zeros(NUMBERS, np.float32), np.zeros(1), 0
        began_s, written = time.perf_counter(), 0
        while not over.rows()[0, 0]:
            if weights.number() != number:
                number = weights.read(vector, posted)
                channel.put({"age_s": time.time() - float(posted[0])})
            is_due = written < (time.perf_counter() - began_s) * pace / WRITERS
            if not (is_due and stream.has_room(rank.index)):
                time.sleep(0.001)
                yield
                continue
            at = int(head[0]) % ROWS
            stream.arrays["frame"][rank.index, at : at + CHUNK] = frames
            stream.arrays["action"][rank.index, at : at + CHUNK] = 1
            stream.arrays["reward"][rank.index, at : at + CHUNK] = 1
            head[0] += CHUNK
            written += CHUNK
            yield

    def read(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        vector, next_s = np.zeros(NUMBERS, np.float32), 0.0
        while not over.rows()[0, 0]:
            if time.time() >= next_s:
                next_s = time.time() + PUBLISH_S
                weights.post(vector, np.array([time.time()]))
            time.sleep(0.001)
            yield

    running = backend.run([*[Job(write, "actor", anywhere=True)] * WRITERS, Job(read, "learner")])
    first_s, began = time.perf_counter(), None
    for _ in running:
        count = int(stream.heads.rows()[:, 0].sum())
        if not count:
            first_s = time.perf_counter()
        elif began is None and time.perf_counter() - first_s > 2:
            channel.drain()
            runners = [each.call("pid") for each in backend._runners.there.all]
            began = time.perf_counter(), count, cpu_times(runners)
        elif began is not None and time.perf_counter() - began[0] > seconds:
            break
    assert began is not None
    passed_s, rows = time.perf_counter() - began[0], count - began[1]
    used = [after - before for after, before in zip(cpu_times(runners), began[2], strict=True)]
    ages = sorted(item["age_s"] for item in channel.drain())
    over.row(0)[0] = 1
    running.close()
    return {
        "rows_per_s": round(rows / passed_s),
        "mb_per_s": round(rows * ROW_BYTES / passed_s / 1e6, 1),
        "cores_of_main_node": round(used[0] / passed_s, 2),
        "cores_of_other_node": round(used[1] / passed_s, 2),
        "age_of_weights_ms": {
            "median": round(1000 * statistics.median(ages), 1),
            "p95": round(1000 * ages[int(0.95 * len(ages))], 1),
        },
    }


def cpu_times(pids: list[int]) -> list[float]:
    """Of each node runner and of the raylet that it is a child of."""
    both = [(psutil.Process(pid), psutil.Process(pid).parent()) for pid in pids]
    return [sum(sum(p.cpu_times()[:2]) for p in pair if p is not None) for pair in both]


def on(address: str, seconds: float, pace: float) -> Row:
    with (
        joining.join(RayOptions(address=address)) as joined,
        closing(Ray(cluster=joined)) as backend,
    ):
        return measure(backend, seconds, pace)


def on_this_machine(seconds: float, pace: float) -> Row:
    with cluster(1, WRITERS, store_bytes=200 << 20) as made:
        return on(made.address, seconds, pace)


def over_a_link(seconds: float) -> Row:
    """This script again, in the first of two network namespaces."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    ray_clusters = importlib.import_module("support.ray_clusters")
    with ray_clusters.two_hosts() as hosts:
        hosts.start_ray(cpus=(1, WRITERS))
        hosts.limit(LINK)
        words = [sys.executable, __file__, "--seconds", str(seconds), "--address"]
        inside = hosts.words(0, *words, f"{hosts.addresses[0]}:6379")
        path = os.pathsep.join(sys.path)
        environment = {**hosts.environment(), "PYTHONPATH": path}
        done = subprocess.run(
            inside, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return {**found, "share_of_link": round(found["mb_per_s"] * 1e6 / LINK_BYTES_PER_S, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.address:
        print(json.dumps(on(given.address, given.seconds, np.inf)))
        return
    book = Book("ray-nodes")
    for case in given.cases or CASES:
        load = os.getloadavg()[0]
        if case == "link":
            found = over_a_link(given.seconds)
        else:
            found = on_this_machine(given.seconds, PACE if case == "paced" else np.inf)
        book.keep(case, load_before=load, **found)


if __name__ == "__main__":
    main()
