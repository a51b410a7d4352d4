"""TorchRL: its collector, replay buffer and losses, in the loop of its examples."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import MLP, EGreedyModule, ProbabilisticActor, QValueActor, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, HardUpdate
from torchrl.objectives.value import GAE

from jobs import GYM, LEARNING_STARTS, REPLAY_ROWS, Clock, Job, run


def make_env(job: Job) -> Any:
    if job.lanes == 1:
        return GymEnv(GYM[job.task], categorical_action_encoding=True)
    return SerialEnv(job.lanes, lambda: GymEnv(GYM[job.task], categorical_action_encoding=True))


def dqn(job: Job, clock: Clock) -> None:
    env = make_env(job)
    seen = env.observation_spec["observation"].shape[-1]
    actions = env.action_spec.space.n
    network = MLP(seen, actions, num_cells=list(job.hidden), activation_class=torch.nn.ReLU)
    policy = QValueActor(network, spec=env.action_spec, in_keys=["observation"])
    explores = EGreedyModule(env.action_spec, eps_init=0.01, eps_end=0.01)
    collector = Collector(
        env, TensorDictSequential(policy, explores), frames_per_batch=job.lanes, total_frames=-1
    )
    rows = TensorDictReplayBuffer(storage=LazyTensorStorage(REPLAY_ROWS), batch_size=job.batch)
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    target = HardUpdate(loss, value_network_update_interval=1_000)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-4)
    steps = updates = 0
    for data in collector:
        steps += data.numel()
        rows.extend(data.reshape(-1))
        if steps >= LEARNING_STARTS:
            optimizer.zero_grad()
            loss(rows.sample())["loss"].backward()
            optimizer.step()
            target.step()
            updates += 1
        if clock.look(steps, updates):
            return


def ppo(job: Job, clock: Clock) -> None:
    env = make_env(job)
    seen = env.observation_spec["observation"].shape[-1]
    actions = env.action_spec.space.n
    cells = list(job.hidden)
    logits = TensorDictModule(MLP(seen, actions, num_cells=cells), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits, spec=env.action_spec, in_keys=["logits"], return_log_prob=True,
        distribution_class=torch.distributions.Categorical,
    )  # fmt: skip
    critic = ValueOperator(MLP(seen, 1, num_cells=cells), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    size = job.lanes * job.rollout
    collector = Collector(env, actor, frames_per_batch=size, total_frames=-1)
    steps = rollouts = 0
    for data in collector:
        for _ in range(job.epochs):
            with torch.no_grad():
                advantage(data)
            flat, order = data.reshape(-1), torch.randperm(size)
            for part in order.reshape(-1, job.batch):
                values = loss(flat[part])
                total = values["loss_objective"] + values["loss_critic"] + values["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        steps, rollouts = steps + size, rollouts + 1
        if clock.look(steps, rollouts):
            return


def drive(job: Job, threads: int, clock: Clock) -> None:
    torch.set_num_threads(threads)
    (dqn if job.algorithm == "dqn" else ppo)(job, clock)


if __name__ == "__main__":
    run(drive)
