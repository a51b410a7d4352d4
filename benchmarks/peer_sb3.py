"""Stable-Baselines3's DQN with the settings of `speed.py`; prints one line of JSON.

Runs in a separate virtual environment (benchmarks/peers.txt): python peer_sb3.py TASK UPDATES
"""

from __future__ import annotations

import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import ale_py  # noqa: E402, F401  (registers the games)
from stable_baselines3 import DQN  # noqa: E402
from stable_baselines3.common.env_util import make_atari_env, make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecFrameStack  # noqa: E402

WARMUP_STEPS = 1_000
ATARI_ENVS = 32  # for SB3 as fast as 8, and faster than 1


def breakout() -> DQN:
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=ATARI_ENVS), 4)
    return DQN(
        "CnnPolicy",
        env,
        learning_rate=1e-4,
        batch_size=32,
        buffer_size=100_000,
        learning_starts=WARMUP_STEPS,
        target_update_interval=1_000,
        train_freq=1,  # in steps of the vector
        gradient_steps=ATARI_ENVS // 4,
        exploration_initial_eps=0.01,
        exploration_final_eps=0.01,
        device="cpu",
    )


def lunarlander() -> DQN:
    return DQN(
        "MlpPolicy",
        make_vec_env("LunarLander-v3", n_envs=1),
        learning_rate=6.3e-4,
        batch_size=128,
        buffer_size=100_000,
        learning_starts=WARMUP_STEPS,
        target_update_interval=250,
        train_freq=1,
        gradient_steps=1,
        exploration_initial_eps=0.01,
        exploration_final_eps=0.01,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
    )


def main() -> None:
    task, updates = sys.argv[1], int(sys.argv[2])
    model = {"breakout": breakout, "lunarlander": lunarlander}[task]()
    steps_per_update = 4 if task == "breakout" else 1
    model.learn(WARMUP_STEPS + 64)  # until learning has begun
    before, started = model._n_updates, time.perf_counter()
    model.learn(updates * steps_per_update, reset_num_timesteps=False)
    seconds = time.perf_counter() - started
    print(json.dumps({"updates_per_s": (model._n_updates - before) / seconds}))


if __name__ == "__main__":
    main()
