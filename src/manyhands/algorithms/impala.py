"""IMPALA: an actor-critic that corrects for actors behind the learner (Espeholt et al. 2018).

Actors record the log-probabilities of their actions. The learner is some updates ahead by then.
It weights each step by the ratio of its own probability to the actor's, clipped at `rho_bar` and
`c_bar` (V-trace). Without a delay this is A2C.

It differs from the paper:
- losses are averaged over the batch, not summed. The paper's rates, clips and epsilons have to be
  scaled; the recipe says how;
- `lam` can shorten the traces (remark 2 of the paper);
- a learner without a new batch may learn `again` from the last one. In the paper half of a batch
  may come from a replay instead.

`losses` computes V-trace from the forward pass of the gradient, so both use the same parameters.
`targets` only values the observations after the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.algorithms import a2c
from manyhands.maths import losses, policies, returns, schedules
from manyhands.types import (
    Algorithm,
    Array,
    Batch,
    EnvSpec,
    Losses,
    QueueDemand,
    Rollout,
    State,
    option,
)


@dataclass(frozen=True)
class Config(a2c.PolicyGradient):
    rollout_steps: int = option(20, "steps per environment in a rollout", low=1)
    rho_bar: float = option(1.0, "V-trace: clip of rho, which decides what is learned", above=0)
    c_bar: float = option(1.0, "V-trace: clip of c, which decides how fast", above=0)
    normalize: bool = option(
        False, "scale advantages of a batch to mean 0 and standard deviation 1"
    )
    batch_rollouts: int = option(1, "rollouts in a batch; each is of one actor", low=1)
    queue_rollouts: int = option(
        2, "rollouts of one actor that may queue; with more, the actor waits", low=1
    )
    again: int = option(0, "times to learn again from a batch while no other is there", low=0)


class Impala(Algorithm):
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.networks = a2c.Networks(config, spec, torso, device)
        self.modules = self.networks.modules
        self.demand = QueueDemand(
            config.rollout_steps,
            config.batch_rollouts,
            config.queue_rollouts,
            config.gamma,
            config.again,
        )
        self.remembers: Mapping[str, str] = {"log_prob": "float32"}

    def exploration(self, agent_steps: int) -> float:  # noqa: ARG002
        """Always sampled from the policy."""
        return 1.0

    def lr(self, agent_steps: int) -> float:
        config = self.config
        return schedules.learning_rate(agent_steps, config.lr, config.lr_decay_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        logits, _ = self.networks.of_array(observation)
        action = policies.sampled(logits, exploration, rng)
        return action, {"log_prob": policies.log_probability(logits, action)}

    def targets(self, experience: Rollout) -> Rollout:
        """Adds the critic's value of what followed steps without a next step in the batch."""
        after = torch.zeros_like(experience.reward)
        after.view(-1)[experience.after_at] = self.networks.value(experience.after)
        added = {"after": after, "ended": experience.ended}
        return replace(experience, columns={**experience.columns, **added})

    def losses(self, batch: Batch) -> Iterator[Losses]:
        def objective(log_prob: Tensor, value: Tensor) -> a2c.Terms:
            log_ratio = log_prob - batch.columns["log_prob"]
            traced = self._traced(batch, log_ratio.detach(), value.detach())
            advantage = traced.advantage.flatten()
            if self.config.normalize:
                advantage = losses.normalized(advantage)
            actor, slope = losses.policy_gradient(log_prob, advantage)
            shown = {"importance": log_ratio.exp()}
            return a2c.Terms(actor, slope, traced.goal.flatten(), shown)

        yield from a2c.actor_critic_losses(self.config, self.networks, batch, objective)

    def _traced(self, batch: Batch, log_ratio: Tensor, value: Tensor) -> returns.VTrace:
        """A batch of a queue has all steps of its lanes, in order."""
        shape = (self.config.rollout_steps, -1)
        value, after = value.view(shape), batch.columns["after"].view(shape)
        ended = batch.columns["ended"].view(shape)
        return returns.vtrace(
            log_ratio.view(shape),
            batch.reward.view(shape),
            batch.discount.view(shape),
            value,
            torch.where(ended, after, torch.cat([value[1:], after[-1:]])),
            ended,
            rho_max=self.config.rho_bar,
            c_max=self.config.c_bar,
            lam=self.config.lam,
        )

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """There is no state."""


make = Impala
