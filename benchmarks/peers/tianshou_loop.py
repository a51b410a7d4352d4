"""Tianshou: its collector, buffer and algorithms; the loop is its trainer's, without logging."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

from jobs import GYM, LEARNING_STARTS, REPLAY_ROWS, Clock, Job, run


def dqn(job: Job, space: Any, actions: Any) -> tuple[Any, Any]:
    net = Net(state_shape=space.shape, action_shape=actions.n, hidden_sizes=job.hidden)
    policy = DiscreteQLearningPolicy(model=net, action_space=actions, eps_training=0.01)
    adam = AdamOptimizerFactory(lr=1e-4)
    return policy, DQN(policy=policy, optim=adam, target_update_freq=1_000, is_double=False)


def ppo(job: Job, space: Any, actions: Any) -> tuple[Any, Any]:
    nets = [Net(state_shape=space.shape, hidden_sizes=job.hidden) for _ in range(2)]
    actor = DiscreteActor(preprocess_net=nets[0], action_shape=actions.n, softmax_output=False)
    policy = DiscreteActorPolicy(actor=actor, action_space=actions)
    critic = DiscreteCritic(preprocess_net=nets[1])
    adam = AdamOptimizerFactory(lr=3e-4)
    return policy, PPO(policy=policy, critic=critic, optim=adam, max_grad_norm=0.5)


def drive(job: Job, threads: int, clock: Clock) -> None:
    torch.set_num_threads(threads)
    env = DummyVectorEnv([lambda: gymnasium.make(GYM[job.task]) for _ in range(job.lanes)])
    one = gymnasium.make(GYM[job.task])
    make = dqn if job.algorithm == "dqn" else ppo
    policy, algorithm = make(job, one.observation_space, one.action_space)
    rows = job.lanes * job.rollout or REPLAY_ROWS
    collector = Collector[Any](policy, env, VectorReplayBuffer(rows, job.lanes))
    collector.reset()
    steps = updates = 0
    while not clock.look(steps, updates):
        with policy_within_training_step(policy):
            steps += collector.collect(n_step=rows if job.rollout else job.lanes).n_collected_steps
            if job.rollout:
                algorithm.update(buffer=collector.buffer, batch_size=job.batch, repeat=job.epochs)
                collector.reset_buffer(keep_statistics=True)
                updates += 1
            elif steps >= LEARNING_STARTS:
                algorithm.update(buffer=collector.buffer, sample_size=job.batch)
                updates += 1


if __name__ == "__main__":
    run(drive)
