"""RLlib: its algorithms on the new API stack, with the learner in the main process."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from jobs import GYM, LEARNING_STARTS, REPLAY_ROWS, Clock, Job, run


def config_of(job: Job) -> Any:
    model = DefaultModelConfig(fcnet_hiddens=list(job.hidden), fcnet_activation="relu")
    if job.algorithm == "ppo":
        config: Any = PPOConfig().training(  # type: ignore[no-untyped-call,unused-ignore]
            train_batch_size_per_learner=job.lanes * job.rollout, minibatch_size=job.batch,
            num_epochs=job.epochs, lr=3e-4, grad_clip=0.5,
        )  # fmt: skip
    else:
        config = DQNConfig().training(  # type: ignore[no-untyped-call,unused-ignore]
            train_batch_size_per_learner=job.batch, lr=1e-4, double_q=False, dueling=False,
            num_steps_sampled_before_learning_starts=LEARNING_STARTS, training_intensity=job.batch,
            target_network_update_freq=1_000,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": REPLAY_ROWS},
        )  # fmt: skip
    return (
        config.environment(GYM[job.task])
        .env_runners(num_env_runners=0, num_envs_per_env_runner=job.lanes)
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
    )


def drive(job: Job, threads: int, clock: Clock) -> None:  # noqa: ARG001
    """Torch reads the number of threads from the harness's environment variables."""
    ray.init(
        address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    logging.disable(logging.WARNING)
    algorithm = config_of(job).build_algo()
    rollouts = 0
    while True:
        result = algorithm.train()
        rollouts += 1
        steps = int(result["num_env_steps_sampled_lifetime"])
        learner = result.get("learners", {}).get("default_policy", {})
        trained = int(learner.get("num_module_steps_trained_lifetime", 0))
        if clock.look(steps, rollouts if job.rollout else trained // job.batch):
            break
    ray.shutdown()


if __name__ == "__main__":
    run(drive)
