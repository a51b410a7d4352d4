"""Writes a run's metrics: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import time
from typing import Any

from manyhands.config import runfiles
from manyhands.runs.journal import Journal
from manyhands.types import Failure
from manyhands.types.sizes import human

METRICS = "metrics.jsonl"
LARGEST = 1 << 30  # bytes that are read: millions of episodes
CUT = f"keep the end of it: tail -n 100000 {METRICS} > shorter; mv shorter {METRICS}"


def problem(folder: Path) -> str:
    """Why the metrics cannot be read, in a sentence; empty if they can."""
    with suppress(OSError), runfiles.opened(folder) as files:
        found = files.look(METRICS)
        if found is not None and found.st_size > LARGEST:
            sizes = f"{human(found.st_size)}, `plot` reads {human(LARGEST)}"
            return f"{METRICS} is too large: {sizes}; {CUT}"
    return ""


class MetricsFile:
    """Every row has ``agent_steps`` and ``wall_s``. Rows are strict JSON: NaN becomes null.

    `write` never fails. `flush` may fail; the next one then writes the rest.
    """

    def __init__(self, folder: Path) -> None:
        self._lines = Journal(folder, METRICS)
        self._events = Journal(folder, f"events.out.tfevents.{int(time())}.{gethostname()}")
        self._events.add(_record(_event(0, {}, file_version="brain.Event:2")))
        with suppress(Failure):  # the disk may have space later
            self.flush()

    def write(self, agent_steps: int, wall_s: float, values: dict[str, float]) -> None:
        row: dict[str, Any] = {"agent_steps": agent_steps, "wall_s": round(wall_s, 3)}
        row |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._lines.add(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._events.add(_record(_event(agent_steps, values)))

    def flush(self) -> None:
        try:
            self._lines.flush()
            self._events.flush()
        except OSError as error:
            what = f"could not write metrics: {runfiles.reason(error)}"
            raise Failure(what, runfiles.remedy(error, "free some space")) from error

    def close(self) -> None:
        self._lines.close()
        self._events.close()


def _event(agent_steps: int, values: dict[str, float], **more: Any) -> bytes:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    tags = [Summary.Value(tag=name, simple_value=value) for name, value in finite.items()]
    content = more or {"summary": Summary(value=tags)}
    event: bytes = Event(wall_time=time(), step=agent_steps, **content).SerializeToString()
    return event


def _record(data: bytes) -> bytes:
    """A record of a TensorBoard file: length and content, each with its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return b"".join((length, next(sums), data, next(sums)))
