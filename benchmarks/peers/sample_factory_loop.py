"""Sample Factory: its asynchronous PPO, with its processes for sampling and learning.

It samples while it learns, so its data is older than in the other sides' PPO.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from jobs import Clock, Job, run

NAMES = {"lunarlander": "LunarLander-v2", "cartpole": "CartPole-v1"}


def make_env(name: str, *_: Any, **named: Any) -> Any:
    return gymnasium.make(name, render_mode=named.get("render_mode"))


class Watch(AlgoObserver):  # type: ignore[misc]
    def __init__(self, job: Job, clock: Clock) -> None:
        self._job, self._clock = job, clock

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        steps = int(runner.env_steps.get(0, 0))
        if self._clock.look(steps, training_iteration_since_resume):
            os._exit(0)  # the harness ends its other processes


def drive(job: Job, threads: int, clock: Clock) -> None:  # noqa: ARG001
    name = NAMES[job.task]
    register_env(name, make_env)
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "env": name, "train_dir": folder, "experiment": "run", "device": "cpu", "algo": "APPO",
            "use_rnn": False, "recurrence": 1, "with_vtrace": False, "num_workers": 2,
            "num_envs_per_worker": job.lanes // 2, "worker_num_splits": 2, "rollout": job.rollout,
            "batch_size": job.batch, "num_batches_per_epoch": job.minibatches,
            "num_epochs": job.epochs, "encoder_mlp_layers": job.hidden, "normalize_input": False,
            "train_for_env_steps": 10**9, "restart_behavior": "overwrite",
            "actor_critic_share_weights": False,
        }  # fmt: skip
        words = []
        for key, value in flags.items():
            many = value if isinstance(value, tuple) else (value,)
            words += [f"--{key}", *map(str, many)]
        parser, _ = parse_sf_args(argv=words)
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Watch(job, clock))
        runner.init()
        runner.run()


if __name__ == "__main__":
    run(drive)
