"""What a user brings, in workers' processes: an algorithm's file, an environment, a torso."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from support.command_line import ALONE, call

MINE = """
from dataclasses import dataclass
import torch
from manyhands.algorithms import dqn
from manyhands.types import Losses, option

SCALE = 0.5

@dataclass(frozen=True)
class Config(dqn.Config):
    slips: float = option(0.1, "how often it moves at random", low=0, high=1)

class Mine(dqn.DQN):
    def losses(self, batch):
        assert self.config.slips == 0.25, self.config
        value = self.online(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        then = batch.columns["next_values"]
        future = torch.lerp(then.amax(1), then.mean(1), SCALE * self.config.slips)
        error = batch.reward + batch.discount * future - value
        yield Losses("q", error.square(), error.detach().abs(), {})

make = Mine
"""
NET = """
from torch import nn
WIDTH = 8
class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], WIDTH)
    def forward(self, seen):
        return self.layer(seen).relu()
"""
WORDS = [
    "--mine.slips=0.25", "--mine.warmup-steps=64", "--mine.batch-size=16", "--steps=400",
    "--memory.capacity=400", "--evaluation.period-steps=0", "--threads=1", "--quiet",
]  # fmt: skip


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def test_an_algorithm_and_a_torso_from_files(here: Path) -> None:
    (here / "mine.py").write_text(MINE)
    (here / "net.py").write_text(NET)
    words = [*WORDS, "--algorithm=mine.py", "--network=net.py:Net", "--out=run"]
    assert call("train", "cartpole", "--strategy=hogwild", "--workers=2", *words) == 0
    assert summary(here / "run")["updates"] > 10
    assert summary(here / "run")["faults"]["restarts"] == 0
    assert call("resume", "run", "--steps=600", "--quiet", "--allow-code") == 0
    assert summary(here / "run")["agent_steps"] >= 600


SCRIPT = """
import gymnasium
import numpy as np
from torch import nn
import manyhands as mh

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(3))
        return self._seen(), {}
    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        return self._seen(), float(self.place == 4), self.place == 4, False, {}
    def _seen(self):
        return np.array([self.place / 4], np.float32)

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)
    def forward(self, seen):
        return self.layer(seen).relu()

print("the script runs")
run = mh.train(lambda: gymnasium.wrappers.TimeLimit(Corridor(), 20), network=Net, workers=2,
               strategy="hogwild", steps=400, out="run", quiet=True, threads=1,
               dqn={"warmup_steps": 64, "batch_size": 16}, memory={"capacity": 400})
print(run.summary["updates"], run.summary["faults"]["restarts"])
"""


def test_an_environment_and_a_torso_of_a_script_without_a_guard(here: Path) -> None:
    (here / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=here, env={**ALONE, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "the script runs"
    updates, restarts = map(int, second.split())
    assert updates > 10
    assert restarts == 0


def test_what_cannot_travel_is_refused_in_a_sentence(here: Path) -> None:
    import threading

    import gymnasium

    lock = threading.Lock()

    def make() -> Any:
        with lock:
            return gymnasium.make("CartPole-v1")

    with pytest.raises(mh.BadRequest, match="cannot be sent to another process"):
        mh.train(make, workers=2, strategy="hogwild", steps=100, out=here / "run", quiet=True)
