"""A disk that is full for a while, under every file a run writes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.runs import checkpoint, journal, liveness
from manyhands.runs.metrics import MetricsFile
from manyhands.types import Failure
from support.command_line import SMALL

MEGABYTE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Takes the last byte there is."""
    path = place / "filler"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(MEGABYTE))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def _every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and tries again whenever it can, so that a test need not wait."""
    for name in ("REPORT_PERIOD_S", "RETRY_S"):
        monkeypatch.setattr(f"manyhands.runs.schedule.{name}", 0.0)


OFTEN: dict[str, Any] = {
    **SMALL,
    "steps": 1300,  # beyond the first snapshot
    "envs_per_worker": 10,
    "checkpoint": {"period_minutes": 1e-5},
    "evaluation": {"period_steps": 100, "episodes": 1},
}


@pytest.mark.usefixtures("_every_turn")
def test_training_continues_and_ends_well(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = mh.Run("cartpole", out=disk / "run", **OFTEN | {"quiet": False})
    filler = None
    for metrics in run:
        if filler is None and metrics["agent_steps"] >= 600:
            filler = fill(disk)
        elif filler is not None and metrics["agent_steps"] >= 1100:
            filler.unlink(missing_ok=True)
    told = capsys.readouterr().out
    assert told.count("No space left on device") == 1, told
    assert told.count("can be written again") == 1, told

    place = disk / "run"
    assert json.loads((place / "status.json").read_text())["state"] == "finished"
    assert json.loads((place / "summary.json").read_text())["agent_steps"] == 1300
    assert checkpoint.newest(place / "checkpoints").step == 1300
    assert {row["agent_steps"] for row in rows(place / "metrics.jsonl")} >= set(range(10, 1301, 10))
    assert "No space left" in rows(place / "faults.jsonl")[0]["cause"]
    assert [path.name for path in (place / "snapshots").iterdir() if path.name != "0"]


@pytest.mark.usefixtures("_every_turn")
def test_a_disk_that_stays_full_is_why_it_failed(disk: Path) -> None:
    """Not an error of writing the status, or of closing the metrics."""
    turns = iter(mh.Run("cartpole", out=disk / "run", **OFTEN))
    while next(turns)["agent_steps"] < 600:
        pass
    fill(disk)
    with pytest.raises(Failure, match=r"could not write checkpoint 1300: No space left"):
        list(turns)
    assert 500 < checkpoint.newest(disk / "run" / "checkpoints").step <= 610
    status = json.loads((disk / "run" / "status.json").read_text())
    assert (status["state"], status["agent_steps"]) == ("failed", 1300)
    assert liveness.of(disk / "run").state == "failed"


# --- Without a disk -----------------------------------------------------------------------------


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that may still be written, of each write in turn; after them the disk is full."""
    left = list[int]()
    really = os.write

    def write(descriptor: int, content: bytes) -> int:
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(descriptor, bytes(content)[: left.pop(0)])

    monkeypatch.setattr("manyhands.runs.journal.os.write", write)
    return left


def test_an_entry_written_by_half_is_ended_later(tmp_path: Path, room: list[int]) -> None:
    made = journal.Journal(tmp_path, "lines")
    made.add(b"one\n")
    made.add(b"two\n")
    room.append(6)
    with pytest.raises(OSError, match="No space"):
        made.flush()
    made.add(b"three\n")
    room += [1, 1000]
    made.flush()
    made.close()
    assert (tmp_path / "lines").read_text() == "one\ntwo\nthree\n"


def test_a_disk_full_for_long_does_not_fill_the_memory(
    tmp_path: Path, room: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhands.runs.journal.MOST_KEPT", 8)
    made = journal.Journal(tmp_path, "lines")
    for entry in (b"one\n", b"two\n", b"three\n"):
        made.add(entry)
    room.append(1000)
    made.close()
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"
    assert made.dropped == 1


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    file = MetricsFile(tmp_path)
    file.write(7, 1.0, {"charts/SPS": 2.5, "losses/nan": float("nan")})
    file.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    content, events = path.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        data, rest = content[12 : 12 + size], content[16 + size :]
        assert int.from_bytes(content[12 + size : 16 + size], "little") == masked_crc32c(data)
        events.append(Event.FromString(data))
        content = rest
    assert events[0].file_version == "brain.Event:2"
    assert events[1].step == 7
    assert [(v.tag, v.simple_value) for v in events[1].summary.value] == [("charts/SPS", 2.5)]
