"""Double Q-learning (van Hasselt 2010) with deep networks: two networks teach each other.

Updates train A and B in turn. A learns r + discount * Q_B(s', a*), where a* is A's best action in
s'; B learns the same with the roles swapped. B seldom overrates the actions that A overrates by
chance. Acting uses the sum of both.

Double DQN (van Hasselt et al. 2016, in `dqn`) values the choices of its network by an older copy,
which has similar errors. Here the two networks learn from different batches. By default there are
no copies. With deep networks that was not stable: on CartPole values grew into the millions. With
`target_period_updates`, which the recipe sets, older copies of A and B teach.

It also differs from the paper in that A and B alternate; the paper picks one at random. A resumed
run alternates as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from manyhands.algorithms import dqn
from manyhands.maths import losses, policies
from manyhands.networks.forward import Forward, Gradients, Mode
from manyhands.networks.heads import arrays_of, load_arrays
from manyhands.types import Array, Batch, EnvSpec, Losses, State, option, restored

PARTS = ("q_a", "q_b")


@dataclass(frozen=True)
class Config(dqn.QLearning):
    target_period_updates: int = option(
        0, "updates between two copies to the networks that teach; 0: no copies", low=0
    )


class DoubleQ(dqn.Scheduled):
    config: Config

    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.actions = spec.actions
        self.modules: dict[str, nn.Module] = {
            part: dqn.network(config.dueling, spec, torso).to(self.device) for part in PARTS
        }
        self.teachers: dict[str, nn.Module] = self.modules
        if config.target_period_updates:
            self.teachers = {
                part: dqn.network(config.dueling, spec, torso).to(self.device).requires_grad_(False)
                for part in PARTS
            }
        self._forwards = {part: Forward(self.device) for part in PARTS}
        self._forward_teachers = {part: Forward(self.device) for part in PARTS}
        self._gradients = {part: Gradients() for part in PARTS}
        self._evaluating = Mode(*self.modules.values(), training=False)
        self.demand = dqn.demand(config)
        self.remembers: Mapping[str, str] = {}
        self._turn = 0
        self._copies = -1  # so the first pull copies
        self._copy()

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values() -> Array:
            a, b = (self._forwards[p](self.modules[p], observation)[0] for p in PARTS)
            return a + b

        return policies.epsilon_greedy(values, self.actions, exploration, rng), {}

    def targets(self, experience: Batch) -> Batch:
        return experience

    def losses(self, batch: Batch) -> Iterator[Losses]:
        """Trains A and B in turn."""
        pupil, teacher = PARTS[self._turn % 2], PARTS[1 - self._turn % 2]
        online, then = self.modules[pupil], batch.next_observation
        with self._evaluating:
            (values,) = self._forwards[pupil].tensors(online, then)
            (taught,) = self._forward_teachers[teacher].tensors(self.teachers[teacher], then)
        future = taught.gather(1, values.argmax(1, keepdim=True)).squeeze(1)
        goal = batch.reward.addcmul(batch.discount, future)
        yield dqn.q_losses(pupil, self._gradients[pupil], online, batch, goal, losses.huber)

    def refreshed(self, version: int) -> bool:
        """Ends a turn. The version would not do: it may skip numbers."""
        self._turn += 1
        period = self.config.target_period_updates
        due = bool(period and version // period != self._copies)
        if due:
            self._copies = version // period
            self._copy()
        return due

    def _copy(self) -> None:
        if self.teachers is not self.modules:
            for part in PARTS:
                self.teachers[part].load_state_dict(self.modules[part].state_dict())

    def state(self) -> State:
        copies = self.teachers if self.teachers is not self.modules else {}
        teachers = {part: arrays_of(module) for part, module in copies.items()}
        return {"turn": self._turn, "copies": self._copies, "teachers": teachers}

    def restore(self, state: State) -> None:
        self._turn = restored.count(state, "turn")
        self._copies = restored.count(state, "copies", least=-1)
        for part, arrays in state["teachers"].items():
            load_arrays(self.teachers[part], arrays)


make = DoubleQ
