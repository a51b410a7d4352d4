"""IMPALA: an actor-critic that corrects for actors behind the learner (Espeholt et al. 2018).

Actors remember how likely they were to do what they did; the learner, by then some updates ahead,
weighs every step by how likely it is to do the same, clipped at `rho_bar` and `c_bar` (V-trace).
With actors that are not behind this is A2C.

It differs from the paper in that losses are averaged over the batch, not added up (rates, clips
and epsilons of theirs are to be scaled: the recipe says how), in that `lam` can shorten the traces
(their remark 2), and in that a learner which would have to wait for its actors may learn from a
batch `again` (with them half of a batch may come from a replay instead). V-trace is computed in
`losses`, from the one forward pass the gradient is taken of, with the parameters of that pass;
`targets` only values what followed the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from manyhands import returns
from manyhands.algorithms import a2c
from manyhands.types import Array, Batch, EnvSpec, Losses, QueueDemand, Rollout, State, knob


@dataclass(frozen=True)
class Config(a2c.PolicyGradient):
    rollout_steps: int = knob(20, "steps of every environment in a rollout", low=1)
    rho_bar: float = knob(1.0, "largest weight of a step: decides what is learned", above=0)
    c_bar: float = knob(1.0, "largest weight of what came after: decides how fast", above=0)
    normalize: bool = knob(False, "advantages of a batch to mean 0 and deviation 1")
    batch_rollouts: int = knob(1, "rollouts in a batch, of one actor each", low=1)
    queue_rollouts: int = knob(2, "of an actor that may wait for the learner; then it waits", low=1)
    again: int = knob(0, "times a batch is learned from again while no other waits", low=0)


class Impala:
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
        """Always by the policy's own chances."""
        return 1.0

    def lr(self, agent_steps: int) -> float:
        return a2c.learning_rate(self.config, agent_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        logits, _ = self.networks.of_array(observation)
        action = a2c.sampled(logits, exploration, rng)
        return action, {"log_prob": a2c.log_probability(logits, action)}

    def targets(self, experience: Rollout) -> Rollout:
        """What followed the steps whose next one is not in the batch, as the critic sees it."""
        after = torch.zeros_like(experience.reward)
        after.view(-1)[experience.after_at] = self.networks.value(experience.after)
        found = {"after": after, "ended": experience.ended}
        return replace(experience, columns={**experience.columns, **found})

    def losses(self, batch: Batch) -> Iterator[Losses]:
        def judge(logits: Tensor, value: Tensor) -> a2c.Judged:
            chance = a2c.policy(logits, batch.action)
            log_ratio = chance.log_prob.detach() - batch.columns["log_prob"]
            traced = self._traced(batch, log_ratio, value.detach())
            advantage = traced.advantage.flatten()
            if self.config.normalize:
                advantage = a2c.normalized(advantage)
            shown = {"importance": log_ratio.exp()}
            return a2c.Judged(
                -advantage * chance.log_prob, chance.entropy, traced.goal.flatten(), shown
            )

        yield from a2c.actor_critic_losses(self.config, self.networks, batch, judge)

    def _traced(self, batch: Batch, log_ratio: Tensor, value: Tensor) -> returns.VTrace:
        """A queue's batch is whole: all steps of all its lanes, in order."""
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
        """Nothing is kept."""


make = Impala
