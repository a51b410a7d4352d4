"""Our all-reduce through shared memory against torch.distributed's with gloo.

    python benchmarks/allreduce_gloo.py

The same processes average the same vectors both ways, in five interleaved rounds. Reports the
medians, and gloo's time over ours. Writes benchmarks/results/allreduce-gloo.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from manyhands.backends.processes import Processes
from manyhands.runs import provenance
from manyhands.types import Job, Rank
from speed import machine

HERE = Path(__file__).parent
NUMBERS = (10_000, 133_000, 1_690_000)  # LunarLander's network is the second, Nature's the third
MEMBERS = (2, 4)
ROUNDS = 5
ABOUT_NUMBERS = 60_000_000  # averaged in a round


def compare(members: int, numbers: int) -> dict[str, Any]:
    """Milliseconds for one average, by the first member's clock."""
    times = max(5, min(1000, ABOUT_NUMBERS // numbers))
    with closing(Processes()) as backend, tempfile.TemporaryDirectory() as folder:
        group, channel = backend.group(members, numbers), backend.channel(1)

        def work(rank: Rank) -> Iterator[None]:
            import torch
            from torch import distributed

            distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/meet", rank=rank.index, world_size=members
            )
            group.join(rank.index, lambda: None)
            vector = torch.full((numbers,), float(rank.index))
            mean = (members - 1) / 2

            def ours() -> None:
                found = group.reduce(vector).vector
                assert found is not None
                assert found[-1] == mean

            def gloo() -> None:
                copy = vector.clone()  # ours does not change its input either
                distributed.all_reduce(copy)
                copy /= members
                assert copy[-1] == mean

            found = {"ours": [], "gloo": []}  # type: dict[str, list[float]]
            for number in range(ROUNDS + 1):  # the first to warm up
                for name, way in (("ours", ours), ("gloo", gloo))[:: -1 if number % 2 else 1]:
                    found[name].append(_ms(way, times))
                    yield
            if rank.index == 0:
                channel.put({name: ms[1:] for name, ms in found.items()})
            distributed.destroy_process_group()

        for fault in backend.run([Job(work)] * members):
            if fault:
                raise RuntimeError(fault.cause)
        (found,) = channel.drain()
    ours, gloo = (statistics.median(found[name]) for name in ("ours", "gloo"))
    rounded = {name: [round(ms, 4) for ms in each] for name, each in found.items()}
    return {"averages in a round": times, "ms": rounded, "gloo / ours": round(gloo / ours, 2)}


def _ms(way: Callable[[], None], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        way()
    return (time.perf_counter() - started) / times * 1e3


def main() -> None:
    results: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/allreduce_gloo.py", *sys.argv[1:]]),
        "commit": provenance.commit(),
        "machine": machine(),
    }
    for members in MEMBERS:
        for numbers in NUMBERS:
            row = compare(members, numbers)
            results[f"{members} members, {numbers:,} numbers"] = row
            print(members, numbers, row, flush=True)
    path = HERE / "results" / "allreduce-gloo.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"-> {path}")


if __name__ == "__main__":
    main()
