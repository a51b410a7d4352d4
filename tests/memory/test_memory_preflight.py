from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands.memory import Config, bytes_needed, preflight, prioritized
from manyhands.memory.replay import Replay
from manyhands.memory.storage.lanes import Lanes
from manyhands.types import BadRequest, EnvSpec, machine

ATARI = EnvSpec("breakout", 8, (84, 84), "uint8", 4, 4, 4)


def test_a_million_atari_rows_take_no_more_than_7_3_gigabytes() -> None:
    assert bytes_needed(ATARI, 1_000_000, {}) <= 7.3e9


@pytest.mark.parametrize("columns", [{}, {"value": "float32", "logits": "(4,)float32"}])
@pytest.mark.parametrize("capacity", [1, 800, 1003])
def test_bytes_needed_is_what_is_allocated(columns: dict[str, str], capacity: int) -> None:
    replay = Replay(ATARI, Config(capacity=capacity), columns=columns, rng=np.random.default_rng(0))
    lanes = replay.lanes
    allocated = sum(array.nbytes for array in lanes.arrays.values()) + lanes.written.nbytes
    assert allocated == bytes_needed(ATARI, capacity, columns)


@pytest.mark.parametrize("capacity", [1, 800, 100_000])
def test_a_prioritized_memory_counts_its_tree(capacity: int) -> None:
    config = Config(capacity=capacity, kind="prioritized")
    memory = prioritized.make(ATARI, config, columns={}, rng=np.random.default_rng(0))
    sampler: Any = memory.sampler
    tree = sampler.tree
    allocated = tree.leaves.nbytes + tree._twigs.nbytes + tree._branches.nbytes
    needed = bytes_needed(ATARI, capacity, {}, "prioritized")
    assert needed - bytes_needed(ATARI, capacity, {}) == allocated


def test_the_million_is_a_small_one_scaled() -> None:
    small = Lanes(ATARI, 100, columns={})
    a_row = sum(array.nbytes for array in small.arrays.values()) / 800
    assert bytes_needed(ATARI, 1_000_000, {}) == pytest.approx(1_000_000 * a_row, rel=1e-6)


def test_a_column_may_not_take_a_name_of_ours() -> None:
    with pytest.raises(BadRequest, match="'reward'"):
        bytes_needed(ATARI, 100, {"reward": "float32"})


def test_preflight_says_what_is_taken_and_what_is_free() -> None:
    line = preflight(7_069_000_000, capacity=1_000_000, free=16_000_000_000)
    assert line == "memory: 1,000,000 rows take 7.1 GB; 16.0 GB free"


@pytest.mark.parametrize("free", [800_000_000, 4_000_000_000, 7_500_000_000])
def test_preflight_refuses_and_names_the_largest_that_fits(free: int) -> None:
    needed = bytes_needed(ATARI, 1_000_000, {})
    with pytest.raises(BadRequest, match="can be used") as refusal:
        preflight(needed, capacity=1_000_000, free=free)
    fits = int("".join(filter(str.isdigit, refusal.value.remedy)))
    assert free - bytes_needed(ATARI, fits, {}) >= max(0.5e9, 0.1 * free) - 1
    preflight(bytes_needed(ATARI, fits, {}), capacity=fits, free=free)
    more = fits + 2 * ATARI.lanes
    with pytest.raises(BadRequest):
        preflight(bytes_needed(ATARI, more, {}), capacity=more, free=free)


def test_preflight_where_nothing_fits() -> None:
    with pytest.raises(BadRequest) as refusal:
        preflight(1000, capacity=10, free=400_000_000)
    assert refusal.value.remedy == "Free some memory first."


V2 = ("0::/a/b\n", "", "memory.max", "memory.current", "inactive_file")
V1 = (
    "5:cpu:/\n4:memory:/a/b\n0::/\n",
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


@pytest.mark.parametrize(("own", "mount", "limit", "usage", "cache"), [V2, V1])
def test_a_containers_limit_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    mount: str,
    limit: str,
    usage: str,
    cache: str,
) -> None:
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    alone = machine.free_bytes()
    group = tmp_path / mount / "a"  # the parent of the process' own group, which has no limit
    (group / "b").mkdir(parents=True)
    for where, most in ((group, "9000000"), (group / "b", "max")):
        (where / limit).write_text(most + "\n")
        (where / usage).write_text("5000000\n")
        (where / "memory.stat").write_text(
            f"anon 7\n{cache} 600000\n{cache.replace('inactive', 'active')} 400000\n"
        )
    assert machine.free_bytes() == 5_000_000 < alone


def test_free_memory_is_plausible_here() -> None:
    assert 1_000_000 < machine.free_bytes() < 1e15


def test_the_room_is_light() -> None:
    code = "import sys, manyhands.memory; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
