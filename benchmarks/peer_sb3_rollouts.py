"""Stable-Baselines3's A2C or PPO on Breakout with the settings of `speed_rollouts.py`.

Runs in a separate virtual environment (benchmarks/peers.txt):
python peer_sb3_rollouts.py a2c|ppo dummy|subproc STEPS; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

warnings.filterwarnings("ignore")

import ale_py  # noqa: E402, F401  (registers the games)
from stable_baselines3 import A2C, PPO  # noqa: E402
from stable_baselines3.common.env_util import make_atari_env  # noqa: E402
from stable_baselines3.common.vec_env import (  # noqa: E402
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
)

SETTINGS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "a2c": (A2C, 16, {"n_steps": 5, "ent_coef": 0.01, "vf_coef": 0.25}),
    "ppo": (
        PPO,
        8,
        {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4,
         "clip_range": 0.1, "ent_coef": 0.01},
    ),
}  # fmt: skip


def main() -> None:
    name, vector, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kind, lanes, values = SETTINGS[name]
    cls = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[vector]
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", lanes, vec_env_cls=cls), 4)
    model = kind("CnnPolicy", env, device="cpu", **values)
    rollout = lanes * values["n_steps"]
    model.learn(rollout)  # warm up
    started, before = time.perf_counter(), model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    seconds = time.perf_counter() - started
    print(json.dumps({"agent_steps_per_s": (model.num_timesteps - before) / seconds}))
    env.close()


if __name__ == "__main__":
    main()
