"""Stable-Baselines3 with the values of its own RL Zoo for the task."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from jobs import GYM
from scoring import Goal, goal

gymnasium.register_envs(ale_py)
LANES = {"dqn": {"lunarlander": 1, "breakout": 1}, "ppo": {"lunarlander": 16, "breakout": 8}}
ZOO: dict[tuple[str, str], dict[str, Any]] = {
    ("lunarlander", "dqn"): {
        "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0,
        "gamma": 0.99, "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1,
        "exploration_fraction": 0.12, "exploration_final_eps": 0.1,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    ("lunarlander", "ppo"): {
        "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
        "ent_coef": 0.01,
    },
    ("breakout", "dqn"): {
        "buffer_size": 100_000, "learning_rate": 1e-4, "batch_size": 32,
        "learning_starts": 100_000, "target_update_interval": 1000, "train_freq": 4,
        "gradient_steps": 1, "exploration_fraction": 0.1, "exploration_final_eps": 0.01,
    },
    ("breakout", "ppo"): {
        "n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4,
        "clip_range": 0.1, "vf_coef": 0.5, "ent_coef": 0.01,
    },
}  # fmt: skip
STEPS = {"lunarlander": {"dqn": 100_000, "ppo": 1_000_000}, "breakout": {}}


class Scores(BaseCallback):  # type: ignore[misc]
    def __init__(self, own: Goal) -> None:
        super().__init__()
        self._own = own

    def _on_step(self) -> bool:
        ended = self.model.ep_info_buffer or []
        if self.n_calls % 50 == 0 and ended:
            score = float(np.mean([episode["r"] for episode in ended]))
            self._own.report(score, len(ended), self.num_timesteps)
        return True


def train(library: Any, own: Goal, **more: Any) -> None:
    """`STEPS`: the Zoo's budget, which decides how exploration and rates decay; then it goes on."""
    lanes = LANES[own.recipe][own.task]
    if own.task == "breakout":
        env: Any = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", lanes, own.seed), 4)
    else:
        env = make_vec_env(GYM[own.task], lanes, own.seed)
    name = "CnnPolicy" if own.task == "breakout" else "MlpPolicy"
    kind = getattr(library, own.recipe.upper())
    model = kind(name, env, seed=own.seed, **ZOO[own.task, own.recipe], **more)
    model.learn(STEPS[own.task].get(own.recipe, 10_000_000), callback=Scores(own))
    while True:
        model.learn(10**6, callback=Scores(own), reset_num_timesteps=False)


if __name__ == "__main__":
    train(stable_baselines3, goal(), device="cpu")
