"""Options of `mh.train` for small runs of several processes, and what those runs end with."""

from __future__ import annotations

from typing import Any

import numpy as np

import manyhands as mh
from manyhands.runs import checkpoint

SHARED: dict[str, Any] = {
    "dqn": {
        "warmup_steps": 100,
        "batch_size": 16,
        "target_period_updates": 20,
        "steps_per_update": 2,
    },
    "memory": {"capacity": 500},
    "network": {"hidden": (64,)},  # enough for three shards
    "evaluation": {"period_steps": 0},
    "envs_per_worker": 4,
    "threads": 1,
    "quiet": True,
}
"""For comparing strategies: no evaluation, so that runs differ by the strategy alone."""

FAULTY: dict[str, Any] = {
    "dqn": {"warmup_steps": 100, "batch_size": 16, "steps_per_update": 2},
    "memory": {"capacity": 500},
    "network": {"hidden": (64,)},
    "envs_per_worker": 2,
    "threads": 1,
    "quiet": True,
}
"""For runs whose processes are killed or hang."""


def weights(run: mh.Run) -> dict[str, np.ndarray]:
    return checkpoint.newest(run.path / "checkpoints").weights


def assert_equal(one: mh.Run, other: mh.Run) -> None:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
