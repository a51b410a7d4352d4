"""How fast a checkpoint with 100,000 Breakout rows is written and read, against the disk itself.

    .venv/bin/python benchmarks/checkpoint_speed.py

Each round writes and reads the same bytes in two ways, one after the other: a plain file, and a
checkpoint. Files are flushed to disk, and dropped from the page cache before they are read. The
ratios are medians over the rounds. Also measures how much memory writing takes at most, beyond the
rows themselves. Writes benchmarks/results/checkpoint-speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from manyhands.runs import checkpoint, provenance
from speed import machine

RESULTS = Path(__file__).parent / "results" / "checkpoint-speed.json"
ROWS, LANES = 100_000, 64
PIECE_BYTES = 8 << 20


def seconds(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def plain_write(path: Path, data: Any) -> None:
    flat = data.reshape(-1)
    with path.open("wb") as file:
        for start in range(0, flat.nbytes, PIECE_BYTES):
            file.write(flat[start : start + PIECE_BYTES])
        file.flush()
        os.fsync(file.fileno())


def plain_read(path: Path, into: Any) -> None:
    with path.open("rb") as file:
        file.readinto(into.reshape(-1).data)


def forget(folder: Path) -> None:
    """Drops the files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def one_round(folder: Path, rows: Any, into: Any) -> dict[str, float]:
    """Megabytes per second, by what was done."""
    plain, saved, size = folder / "plain", folder / "checkpoints", rows.nbytes / 1e6
    found = {"plain write": size / seconds(lambda: plain_write(plain, rows))}
    given: dict[str, Any] = {"weights": {"w": np.zeros(3, np.float32)}, "state": {}}
    replay = {"arrays": {"frame": rows}}
    save = lambda: checkpoint.save(saved, 1, **given, replay=replay)  # noqa: E731
    found["checkpoint write"] = size / seconds(save)
    forget(folder)
    found["plain read"] = size / seconds(lambda: plain_read(plain, into))
    forget(folder)

    def load() -> None:
        loaded = checkpoint.newest(saved)
        assert loaded.replay is not None
        into[:] = loaded.replay["arrays"]["frame"]

    found["checkpoint read"] = size / seconds(load)
    shutil.rmtree(saved)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    shape = (LANES, ROWS // LANES, 84, 84)
    rows = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    into = np.zeros_like(rows)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        rounds = [one_round(Path(folder), rows, into) for _ in range(asked.rounds)]
    more_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1e3
    ratios = {
        way: statistics.median(one[f"checkpoint {way}"] / one[f"plain {way}"] for one in rounds)
        for way in ("write", "read")
    }
    facts = {"machine": machine(), "commit": provenance.commit(), "date": time.strftime("%Y-%m-%d")}
    content = {
        **facts,
        "command": f"python benchmarks/checkpoint_speed.py --rounds {asked.rounds}",
        "rows": ROWS,
        "megabytes": round(rows.nbytes / 1e6),
        "MB/s": [{name: round(value) for name, value in one.items()} for one in rounds],
        "checkpoint / plain": {way: round(ratio, 2) for way, ratio in ratios.items()},
        "memory beyond the rows, MB, mapped pages of the file included": round(more_mb),
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
