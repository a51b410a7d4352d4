"""Stable-Baselines3: DQN, PPO and A2C."""

from __future__ import annotations

import warnings
from typing import Any

warnings.filterwarnings("ignore")

import ale_py  # noqa: E402
import gymnasium  # noqa: E402
import stable_baselines3  # noqa: E402
import torch  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_atari_env, make_vec_env  # noqa: E402
from stable_baselines3.common.vec_env import VecFrameStack  # noqa: E402

from jobs import GYM, LEARNING_STARTS, REPLAY_ROWS, Clock, Job, run  # noqa: E402

gymnasium.register_envs(ale_py)


def make_env(job: Job) -> Any:
    if job.task == "breakout":
        return VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", job.lanes), 4)
    return make_vec_env(GYM[job.task], job.lanes)


def values(job: Job) -> dict[str, Any]:
    """The arguments of the library's own class."""
    if job.algorithm == "dqn":
        return {
            "batch_size": job.batch, "buffer_size": REPLAY_ROWS, "learning_rate": 1e-4,
            "learning_starts": LEARNING_STARTS, "target_update_interval": 1_000,
            "train_freq": 1,  # in steps of the vector
            "gradient_steps": max(1, job.lanes // job.steps_per_update),
            "exploration_initial_eps": 0.01, "exploration_final_eps": 0.01,
        }  # fmt: skip
    if job.algorithm == "a2c":
        return {"n_steps": job.rollout, "ent_coef": 0.01}
    return {"n_steps": job.rollout, "n_epochs": job.epochs, "batch_size": job.batch}


class Watch(BaseCallback):  # type: ignore[misc]
    """Looks at the clock between updates, or between rollouts."""

    def __init__(self, job: Job, clock: Clock) -> None:
        super().__init__()
        self._job, self._clock, self._rollouts = job, clock, -1

    def _on_rollout_start(self) -> None:
        if self._job.rollout:
            self._rollouts += 1
            self._clock.look(self.num_timesteps, self._rollouts)

    def _on_step(self) -> bool:
        if not self._job.rollout:
            self._clock.look(self.num_timesteps, self.model._n_updates)
        return not self._clock.over


def drive_with(library: Any, job: Job, env: Any, clock: Clock, **more: Any) -> None:
    policy = {"net_arch": list(job.hidden)} if job.hidden else {}
    name = "MlpPolicy" if job.hidden else "CnnPolicy"
    kind = getattr(library, job.algorithm.upper())
    model = kind(name, env, policy_kwargs=policy, **values(job), **more)
    model.learn(10**9, callback=Watch(job, clock))


def drive(job: Job, threads: int, clock: Clock) -> None:
    torch.set_num_threads(threads)
    drive_with(stable_baselines3, job, make_env(job), clock, device="cpu")


if __name__ == "__main__":
    run(drive)
