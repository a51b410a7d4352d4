"""PQN: Q-learning without replay and without a target network (Gallici et al. 2024).

Many environments step together. The network learns the lambda-returns of a rollout in a few epochs
of minibatches, and the rollout is dropped. Layer norm in the network (`network.norm`, set by the
recipe) keeps this stable, so there is no target network.

As in the authors' code (purejaxql), returns use the values computed while acting. They come from
the same parameters, so the rollout needs no second forward pass.

It differs from that code:
- layer norm of a convolution is over channels and pixels, as in CleanRL; there it is over the
  channels of each pixel;
- a truncated episode bootstraps from its last observation; there it counts as terminated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from manyhands.algorithms import a2c, dqn
from manyhands.maths import losses, policies, returns, schedules
from manyhands.networks.forward import Forward, Gradients
from manyhands.types import (
    Algorithm,
    Array,
    Batch,
    EnvSpec,
    Losses,
    Rollout,
    RolloutDemand,
    State,
    option,
)


@dataclass(frozen=True)
class Config(a2c.OnPolicy):
    lr: float = option(2.5e-4, "learning rate", above=0)
    rollout_steps: int = option(32, "steps per environment in a rollout", low=1)
    lam: float = option(0.65, "lambda of returns: 0 one step, 1 the whole rollout", low=0, high=1)
    epochs: int = option(2, "passes over a rollout", low=1)
    minibatches: int = option(4, "minibatches in a pass, one update each", low=1)
    dueling: bool = option(False, "dueling heads: one stream for the value, one for the advantages")
    epsilon_end: float = option(0.01, "epsilon after its decay", low=0, high=1)
    epsilon_decay_steps: int = option(
        100_000, "agent steps over which epsilon falls linearly from 1", low=0
    )


class PQN(Algorithm):
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.actions = spec.actions
        self.network = dqn.network(config.dueling, spec, torso).to(self.device)
        self.modules: Mapping[str, nn.Module] = {"q": self.network}
        self._forward, self._gradients = Forward(self.device), Gradients()
        self.demand = RolloutDemand(
            config.rollout_steps, config.epochs, config.minibatches, config.gamma
        )
        self.remembers: Mapping[str, str] = {"value": "float32"}

    def exploration(self, agent_steps: int) -> float:
        return schedules.epsilon(
            agent_steps,
            warmup_steps=0,
            decay_steps=self.config.epsilon_decay_steps,
            end=self.config.epsilon_end,
        )

    def lr(self, agent_steps: int) -> float:
        config = self.config
        return schedules.learning_rate(agent_steps, config.lr, config.lr_decay_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        (values,) = self._forward(self.network, observation)
        action = policies.epsilon_greedy(lambda: values, self.actions, exploration, rng)
        return action, {"value": values.max(1)}

    def targets(self, experience: Rollout) -> Rollout:
        (values,) = self._forward.tensors(self.network, experience.after)
        after, value = values.amax(1), experience.columns["value"]
        following = returns.next_values(value, after, experience.after_at)
        goal = returns.lambda_returns(
            experience.reward, experience.discount, following, experience.ended, self.config.lam
        )
        return replace(experience, columns={"goal": goal})

    def losses(self, batch: Batch) -> Iterator[Losses]:
        goal = batch.columns["goal"]
        yield dqn.q_losses("q", self._gradients, self.network, batch, goal, losses.half_square)

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """There is no state."""


make = PQN
