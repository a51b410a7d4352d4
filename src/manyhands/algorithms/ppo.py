"""PPO: proximal policy optimisation with a clipped objective (Schulman et al. 2017).

This is PPO with: GAE; several epochs of minibatches; advantages normalised in each minibatch; no
clipping of the value's loss (Engstrom et al. 2020 and Andrychowicz et al. 2021 found that it does
not help); a constant clip range, where the paper shrinks it on Atari.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.algorithms import a2c
from manyhands.types import Array, Batch, EnvSpec, Losses, Rollout, RolloutDemand, State, knob


@dataclass(frozen=True)
class Config(a2c.PolicyGradient):
    lr: float = knob(2.5e-4, "learning rate", above=0)
    rollout_steps: int = knob(128, "steps of every environment in a rollout", low=1)
    lam: float = knob(0.95, "weight of longer returns: 0 one step, 1 all of them", low=0, high=1)
    epochs: int = knob(4, "times a rollout is learned from", low=1)
    minibatches: int = knob(4, "parts of a rollout, each a gradient", low=1)
    clip: float = knob(0.2, "how far a chance may move before its gradient stops", above=0, high=1)
    normalize: bool = knob(True, "advantages of a minibatch to mean 0 and deviation 1")


class PPO:
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
        """Always by the policy's own chances."""
        return 1.0

    def lr(self, agent_steps: int) -> float:
        return a2c.learning_rate(self.config, agent_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        logits, value = self.networks.of_array(observation)
        action = a2c.sampled(logits, exploration, rng)
        return action, {"value": value, "log_prob": a2c.log_probability(logits, action)}

    def targets(self, experience: Rollout) -> Rollout:
        return a2c.with_advantages(experience, self.networks, self.config.lam)

    def losses(self, batch: Batch) -> Iterator[Losses]:
        advantage, goal = batch.columns["advantage"], batch.columns["goal"]
        if self.config.normalize:
            advantage = a2c.normalized(advantage)

        def judge(logits: Tensor, _: Tensor) -> a2c.Judged:
            chance = a2c.policy(logits, batch.action)
            ratio = (chance.log_prob - batch.columns["log_prob"]).exp()
            loss, moved = clipped(ratio, advantage, self.config.clip)
            return a2c.Judged(loss, chance.entropy, goal, {"clip_fraction": moved})

        yield from a2c.actor_critic_losses(self.config, self.networks, batch, judge)

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


def clipped(ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """The pessimistic objective, to be made small; and which samples were beyond the clip."""
    near = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, near * advantage)
    return loss, ((ratio - 1).abs() > clip).float().detach()


make = PPO
