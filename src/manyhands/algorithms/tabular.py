"""Tabular Q-learning (Watkins 1989), with planning steps Dyna-Q (Sutton 1990).

One value for each pair of a discrete observation and an action. The table is the flat vector, and
half the squared TD error its loss. Plain gradient descent with learning rate alpha is then exactly
Q-learning, so every strategy shares a table as it shares a network.

- `planning_steps` outcomes that the memory remembers are learned from after each step. With 0 this
  is Q-learning, with more Dyna-Q.
- With `memory.kind` sweeping, the pairs whose values are most wrong are learned from first
  (prioritized sweeping, Moore and Atkeson 1993).
- Of actions with equal values a random one is taken.

A batch may hold several steps, which are learned from together: it is faster, and the values lag
by less than a batch. Each pair then moves by alpha times the mean of its errors in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.algorithms import dqn
from manyhands.maths import policies, schedules
from manyhands.networks.forward import Forward, Gradients
from manyhands.networks.table import Table
from manyhands.types import (
    Algorithm,
    Array,
    BadRequest,
    Batch,
    EnvSpec,
    Losses,
    Options,
    PlanningDemand,
    State,
    option,
)

LARGEST = 10_000_000  # values in a table; every update passes over all of them


@dataclass(frozen=True)
class Config(Options):
    uses_torso: ClassVar[bool] = False

    lr: float = option(0.1, "alpha: the share of the TD error that a value moves by", above=0)
    lr_decay_steps: int = option(
        0, "agent steps over which lr falls linearly to a tenth; 0: constant", low=0
    )
    gamma: float = option(0.95, "discount per agent step", low=0, high=1)
    planning_steps: int = option(
        0, "remembered steps that are learned from after each real one; 0: Q-learning", low=0
    )
    batch_size: int = option(1, "steps per update; 1: as in the textbook", low=1)
    warmup_steps: int = option(0, "agent steps with random actions before the first update", low=0)
    initial_value: float = option(0.0, "the value of every pair at first; large ones make curious")
    epsilon_end: float = option(0.1, "epsilon after its decay", low=0, high=1)
    epsilon_decay_steps: int = option(
        0, "agent steps over which epsilon falls linearly from 1; 0: constant", low=0
    )

    @property
    def replay_demand(self) -> PlanningDemand:
        return PlanningDemand(
            batch_size=self.batch_size,
            steps_per_update=self.batch_size / (1 + self.planning_steps),
            warmup_steps=self.warmup_steps,
            n_step=1,
            gamma=self.gamma,
        )


class Tabular(Algorithm):
    def __init__(
        self,
        config: Config,
        *,
        spec: EnvSpec,
        torso: Callable[[], nn.Module],  # noqa: ARG002  (a table has none)
        device: str = "cpu",
    ) -> None:
        refuse_without_states(spec)
        self.config = config
        self.actions = spec.actions
        table = Table(spec.states, spec.strides, spec.actions, config.initial_value)
        self.table = table.to(torch.device(device))
        self.modules: Mapping[str, nn.Module] = {"q": self.table}
        self._forward, self._gradients = Forward(torch.device(device)), Gradients()
        self.demand = config.replay_demand
        self.remembers: Mapping[str, str] = {}

    def exploration(self, agent_steps: int) -> float:
        config = self.config
        return schedules.epsilon(
            agent_steps,
            warmup_steps=config.warmup_steps,
            decay_steps=config.epsilon_decay_steps,
            end=config.epsilon_end,
        )

    def lr(self, agent_steps: int) -> float:
        config = self.config
        return schedules.learning_rate(agent_steps, config.lr, config.lr_decay_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values_of_best() -> Array:
            """Positive for the best actions, and at random among these."""
            values = self._forward(self.table, observation)[0]
            best = values == np.maximum.reduce(values, 1, keepdims=True)
            shuffled: Array = best * (1.0 + rng.random(values.shape))
            return shuffled

        return policies.epsilon_greedy(values_of_best, self.actions, exploration, rng), {}

    def targets(self, experience: Batch) -> Batch:
        """Adds the present errors: `memory.sweeping` orders pairs by them."""
        (values,) = self._forward.tensors(self.table, experience.observation)
        value = values.gather(1, experience.action[:, None]).squeeze(1)
        return experience.plus(error=(self._goal(experience) - value).abs())

    def losses(self, batch: Batch) -> Iterator[Losses]:
        share = self._share(batch)

        def loss(error: Tensor) -> tuple[Tensor, Tensor]:
            """Half the squared error, and its slope."""
            return 0.5 * share * error.square(), share * error

        yield dqn.q_losses("q", self._gradients, self.table, batch, self._goal(batch), loss)

    def _goal(self, batch: Batch) -> Tensor:
        """By the present values, also those that this draw's other batches changed."""
        (values,) = self._forward.tensors(self.table, batch.next_observation)
        return batch.reward.addcmul(batch.discount, values.amax(1))

    def _share(self, batch: Batch) -> Tensor | float:
        """The learner averages over the batch. A pair is to move by its own mean error."""
        size = len(batch.action)
        if size == 1:
            return 1.0
        pairs = self.table.index(batch.observation) * self.actions + batch.action
        share: Tensor = size / pairs.bincount()[pairs]
        return share

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """All it knows is in the table."""


def refuse_without_states(spec: EnvSpec) -> None:
    if not spec.states:
        raise BadRequest(
            f"{spec.id} has observations that are not discrete; a table needs whole numbers.",
            "Use a network: --recipe dqn.",
        )
    if spec.states * spec.actions > LARGEST:
        raise BadRequest(
            f"a table of {spec.states:,} observations of {spec.id} and {spec.actions} actions is "
            f"too large: {LARGEST:,} values are the most",
            "Use a network: --recipe dqn.",
        )


make = Tabular
