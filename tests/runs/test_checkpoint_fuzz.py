"""Checkpoints with right hashes and wrong contents: refused in two lines, or a good start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands.runs import provenance
from support import checkpoint_fuzz
from support.checkpoint_fuzz import KINDS, Good, tried

MEMORY_DISK = Path("/dev/shm")
QUICK, SLOW = 40, 10_000  # of each kind


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    where = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="manyhands-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module", params=KINDS)
def good(request: pytest.FixtureRequest, disk: Path) -> Iterator[Good]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "commit", lambda: "")  # a process of its own each time
        yield checkpoint_fuzz.made(disk, request.param)


def test_what_was_not_changed_starts(good: Good, disk: Path) -> None:
    assert checkpoint_fuzz.came_of(good, good.parts, good.config, disk) == "started"


def test_what_was_changed_starts_or_is_refused(good: Good, disk: Path) -> None:
    outcomes = [tried(good, seed, disk)[1].partition(":")[0] for seed in range(QUICK)]
    assert {"started", "refused"} <= set(outcomes)


def test_what_is_only_played_is_looked_at_too(good: Good, disk: Path) -> None:
    outcomes = [checkpoint_fuzz.played(good, seed, disk).partition(":")[0] for seed in range(QUICK)]
    assert {"started", "refused"} <= set(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_what_was_changed_in_a_hundred_thousand_ways(good: Good, disk: Path) -> None:
    for seed in range(QUICK, QUICK + SLOW):
        tried(good, seed, disk)
