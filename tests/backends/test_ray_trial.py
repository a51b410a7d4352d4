"""The Backend seam on Ray: strategy and algorithm unchanged, two Ray workers, nothing left."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,  # starts a Ray of its own
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
TRIAL = Path(__file__).with_name("ray_trial.py")


def of_ray() -> set[int]:
    """Who runs from the trial's folder: Ray's own processes leave its session."""
    found = set()
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        words = [*(process.info["cmdline"] or ()), *(process.info["environ"] or {})]
        alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and any("MANYHANDS_RAY_TRIAL" in word for word in words):
            found.add(process.pid)
    return found


def test_a_parameter_server_on_two_ray_workers() -> None:
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "MANYHANDS_RAY_TRIAL": "1",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    shared = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TRIAL)], env=environment, capture_output=True,
        text=True, check=False, timeout=200, start_new_session=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    updates = [end["updates"] for end in found["workers"]]
    assert len({end["pid"] for end in found["workers"]}) == 2
    assert min(updates) > 50
    assert found["versions"] == [sum(updates)] * 2, "no push was lost, in no shard"
    assert found["finite"]
    assert found["moved"] > 1e-3
    assert found["let_in_without_token"] is False, "Ray listens everywhere, whatever it is told"
    assert not of_ray()
    assert set(os.listdir("/dev/shm")) <= shared
