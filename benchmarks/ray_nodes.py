"""Between two nodes of a cluster on this machine: rows per second, and the age of weights.

    python benchmarks/ray_nodes.py [--seconds 10]

Writers on one node append rows of the size of an Atari row; a reader on main's node counts them. At
the same time the reader posts a vector as long as the Nature network's, as a learner does, and the
writers measure how old the newest one is. Writes benchmarks/results/ray_nodes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from manyhands.backends.ray import Ray, calling_ray, joining
from manyhands.backends.ray.options import RayOptions
from manyhands.types import Job, Rank

HERE = Path(__file__).parent
WRITERS, ROWS, FRAME = 4, 20_000, (84, 84)
NUMBERS, PUBLISH_S = 1_700_000, 0.2


def start_cluster(folder: str) -> Any:
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    calling_ray.read_environment_again()
    from ray.cluster_utils import Cluster

    made = Cluster(shutdown_at_exit=False)
    made.add_node(num_cpus=1, temp_dir=folder, object_store_memory=200 << 20)
    made.add_node(num_cpus=WRITERS, object_store_memory=200 << 20)
    return made


def measure(backend: Ray, seconds: float) -> dict[str, Any]:
    kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "frame": ((WRITERS, ROWS, *FRAME), np.dtype(np.uint8)),
        "action": ((WRITERS, ROWS), np.dtype(np.int32)),
        "reward": ((WRITERS, ROWS), np.dtype(np.float32)),
    }
    stream = backend.stream(kinds, writers=WRITERS, fields=1)
    weights = backend.notice(np.zeros(NUMBERS, np.float32), np.zeros(1))
    channel, over = backend.channel(1000), backend.table(1, 1, np.dtype(np.int64))

    def write(rank: Rank) -> Iterator[None]:
        head, frame = stream.heads.row(rank.index), np.zeros(FRAME, np.uint8)
        vector, posted, number = np.zeros(NUMBERS, np.float32), np.zeros(1), 0
        while not over.rows()[0, 0]:
            if weights.number() != number:
                number = weights.read(vector, posted)
                channel.put({"age_s": time.time() - float(posted[0])})
            if not stream.has_room(rank.index):
                time.sleep(0.001)
                yield
                continue
            at = head[0] % ROWS
            stream.arrays["frame"][rank.index, at] = frame
            stream.arrays["action"][rank.index, at] = 1
            stream.arrays["reward"][rank.index, at] = 1
            head[0] += 1
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
    began: tuple[float, int, list[float]] | None = None
    for _ in running:
        count = int(stream.heads.rows()[:, 0].sum())
        if began is None and count > 1000:
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
        "mb_per_s": round(rows * (FRAME[0] * FRAME[1] + 8) / passed_s / 1e6, 1),
        "cores_of_main_node_runner": round(used[0] / passed_s, 2),
        "cores_of_other_node_runner": round(used[1] / passed_s, 2),
        "age_of_weights_ms": {
            "median": round(1000 * statistics.median(ages), 1),
            "p95": round(1000 * ages[int(0.95 * len(ages))], 1),
        },
        "load_before": os.getloadavg()[0],
    }


def cpu_times(pids: list[int]) -> list[float]:
    return [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="mhb-", dir="/tmp", ignore_cleanup_errors=True) as home:
        cluster = start_cluster(home)
        try:
            with (
                joining.join(RayOptions(address=cluster.address)) as joined,
                closing(Ray(cluster=joined)) as backend,
            ):
                result = measure(backend, seconds)
        finally:
            cluster.shutdown()
    text = json.dumps(result, indent=1)
    (HERE / "results" / "ray_nodes.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
