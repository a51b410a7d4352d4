"""PPO: proximal policy optimisation with a clipped objective (Schulman et al. 2017).

This is PPO with GAE, several epochs of minibatches, and advantages normalised in each minibatch.
The value loss is not clipped: Engstrom et al. 2020 and Andrychowicz et al. 2021 found no benefit.

It differs from the paper on Atari: the clip range is constant, and the learning rate falls to a
tenth. There both fall to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from manyhands.algorithms import a2c
from manyhands.maths import losses, policies, schedules
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
class Config(a2c.PolicyGradient):
    lr: float = option(2.5e-4, "learning rate", above=0)
    rollout_steps: int = option(128, "steps per environment in a rollout", low=1)
    lam: float = option(
        0.95, "lambda of returns and GAE: 0 one step, 1 the whole rollout", low=0, high=1
    )
    epochs: int = option(4, "passes over a rollout", low=1)
    minibatches: int = option(4, "minibatches in a pass, one update each", low=1)
    clip: float = option(
        0.2, "the probability ratio is clipped to 1 - this … 1 + this", above=0, high=1
    )
    normalize: bool = option(
        True, "scale advantages of a minibatch to mean 0 and standard deviation 1"
    )


class PPO(Algorithm):
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.networks = a2c.Networks(config, spec, torso, device)
        self.modules = self.networks.modules
        self.demand = RolloutDemand(
            config.rollout_steps, config.epochs, config.minibatches, config.gamma
        )
        self.remembers: Mapping[str, str] = {"value": "float32", "log_prob": "float32"}

    def exploration(self, agent_steps: int) -> float:  # noqa: ARG002
        """Always sampled from the policy."""
        return 1.0

    def lr(self, agent_steps: int) -> float:
        config = self.config
        return schedules.learning_rate(agent_steps, config.lr, config.lr_decay_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        logits, value = self.networks.of_array(observation)
        action = policies.sampled(logits, exploration, rng)
        return action, {"value": value, "log_prob": policies.log_probability(logits, action)}

    def targets(self, experience: Rollout) -> Rollout:
        return a2c.with_advantages(experience, self.networks, self.config.lam)

    def losses(self, batch: Batch) -> Iterator[Losses]:
        advantage, goal = batch.columns["advantage"], batch.columns["goal"]
        if self.config.normalize:
            advantage = losses.normalized(advantage)

        def objective(log_prob: Tensor, _: Tensor) -> a2c.Terms:
            log_ratio, clip = log_prob - batch.columns["log_prob"], self.config.clip
            loss, slope, clipped = losses.clipped_objective(log_ratio, advantage, clip)
            return a2c.Terms(loss, slope, goal, {"clip_fraction": clipped})

        yield from a2c.actor_critic_losses(self.config, self.networks, batch, objective)

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """There is no state."""


make = PPO
