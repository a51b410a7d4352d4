"""PQN: Q-learning without replay and without a target network (Gallici et al. 2024).

Many environments step together; lambda-returns of what they just did are learned from in a few
epochs of minibatches, and forgotten. What keeps it stable is the layer norm in the network
(`network.norm`, set by the recipe) in place of a late copy.

It differs from the authors' code in that the values in the returns are those seen while acting,
of the same parameters, so that the rollout is not put through the network a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from manyhands import returns
from manyhands.algorithms import a2c, dqn
from manyhands.networks.quick import Forward
from manyhands.types import Array, Batch, EnvSpec, Losses, Rollout, RolloutDemand, State, knob


@dataclass(frozen=True)
class Config(a2c.OnPolicy):
    lr: float = knob(2.5e-4, "learning rate", above=0)
    rollout_steps: int = knob(32, "steps of every environment in a rollout", low=1)
    lam: float = knob(0.65, "weight of longer returns: 0 one step, 1 all of them", low=0, high=1)
    epochs: int = knob(2, "times a rollout is learned from", low=1)
    minibatches: int = knob(4, "parts of a rollout, each a gradient", low=1)
    dueling: bool = knob(False, "value and advantages apart, in two streams")
    epsilon_end: float = knob(0.01, "exploration once decayed", low=0, high=1)
    epsilon_decay_steps: int = knob(100_000, "agent steps from 1 to the end, linear", low=0)


class PQN:
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.actions = spec.actions
        self.network = dqn.network(config.dueling, spec, torso).to(self.device)
        self.modules: Mapping[str, nn.Module] = {"q": self.network}
        self._forward = Forward(self.device)
        self.demand = RolloutDemand(
            config.rollout_steps, config.epochs, config.minibatches, config.gamma
        )
        self.remembers: Mapping[str, str] = {"value": "float32"}

    def exploration(self, agent_steps: int) -> float:
        decayed = min(1.0, agent_steps / max(1, self.config.epsilon_decay_steps))
        return 1.0 + decayed * (self.config.epsilon_end - 1.0)

    def lr(self, agent_steps: int) -> float:
        return a2c.learning_rate(self.config, agent_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        (values,) = self._forward(self.network, observation)
        action = dqn.epsilon_greedy(lambda: values, self.actions, exploration, rng)
        return action, {"value": values.max(1)}

    def targets(self, experience: Rollout) -> Rollout:
        with torch.no_grad():
            after = self.network(experience.after).amax(1)
        value = experience.columns["value"]
        following = returns.next_values(value, after, experience.after_at)
        goal = returns.lambda_returns(
            experience.reward, experience.discount, following, experience.ended, self.config.lam
        )
        return replace(experience, columns={"goal": goal})

    def losses(self, batch: Batch) -> Iterator[Losses]:
        value = self.network(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        error = batch.columns["goal"] - value
        shown = {"q_values": value.detach(), "td_error": error.detach()}
        yield Losses("q", 0.5 * error.square(), error.detach().abs(), shown)

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


make = PQN
