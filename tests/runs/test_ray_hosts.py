"""A run on two hosts with a network between them, the second of which lacks the user's files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support import ray_clusters
from support.ray_clusters import Hosts

pytestmark = [pytest.mark.ray, pytest.mark.heavy]

GAME = """
import gymnasium, numpy as np
from rules import LENGTH

class Game(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        seen = np.full(3, self.steps / LENGTH, np.float32)
        return seen, float(action), self.steps >= LENGTH, False, {}
"""
SCRIPT = """
import manyhands as mh
import beside
from manyhands.types import Refusal

def train(out, **ray):
    how = {"recipe": "distributed-dqn", "actors": 2, "steps": 500, "backend": "ray"}
    return mh.train(beside.make, **how, ray={"address": "auto", **ray}, out=out)

try:
    train("missing")
except Refusal as refusal:
    print(refusal)
print(train("sent", ship="beside.py").summary["faults"]["restarts"])
"""


def run(hosts: Hosts, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = hosts.words(0, sys.executable, *words)
    environment = {**hosts.environment(), "RAY_ADDRESS": f"{hosts.addresses[0]}:6379"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip


def test_files_go_along_and_missing_modules_are_named(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME)
    (tmp_path / "rules.py").write_text("LENGTH = 20\n")
    (tmp_path / "beside.py").write_text(
        "import gymnasium\ndef make(): return gymnasium.make('CartPole-v1')\n"
    )
    (tmp_path / "script.py").write_text(SCRIPT)
    with ray_clusters.two_hosts() as hosts:
        hosts.start_ray(cpus=(1, 2), hidden=tmp_path)
        train = ["-m", "manyhands", "train", "game.py:Game", "--recipe=distributed-dqn"]
        how = ["--actors=2", "--steps=600", "--backend=ray", "--ray.address=auto", "--out=run"]
        done = run(hosts, tmp_path, *train, *how)
        assert done.returncode == 0, done.stderr
        assert "node 10.77.0.1: 1 learner" in done.stdout
        assert "node 10.77.0.2: 2 actors" in done.stdout
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert sorted(summary["nodes"]) == list(hosts.addresses)
        assert summary["faults"]["restarts"] == summary["faults"]["nodes_lost"] == 0
        assert summary["agent_steps"] >= 600
        said = run(hosts, tmp_path, "script.py")
        told = said.stdout
        assert told.splitlines()[-1:] == ["0"], said.stderr
        assert "node 10.77.0.2: " in told
        assert "there is no module 'beside'" in told
        assert "--ray.ship" in told
