"""Double Q-learning: two networks that teach each other (van Hasselt 2010), made deep.

Every update trains one of the two, A and B in turn: A towards r + discount * Q_B(s', a*), where a*
is the action A itself likes best in s', and B the other way round. What A overrates by chance B
most likely does not. Actions are chosen by the sum of both.

Double DQN (in `dqn`, van Hasselt et al. 2016) has one trained network and a late copy of it that
values its choices: copy and original err alike. Here are two, trained on different batches, and by
default no copies at all: each learns from the other as it is now. For deep networks that was not
stable (on CartPole values grew into the millions); `target_period_updates` gives slower teachers,
late copies of both, and the recipe sets it.
It differs from the paper, besides, in that turns are taken, not drawn by lot: as often, and the
same after a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from manyhands.algorithms import dqn
from manyhands.networks.quick import Forward
from manyhands.types import Array, Batch, EnvSpec, Losses, State, knob

PARTS = ("q_a", "q_b")


@dataclass(frozen=True)
class Config(dqn.QLearning):
    target_period_updates: int = knob(
        0, "updates between two copies to slow teachers; 0: the networks themselves teach", low=0
    )


class DoubleQ:
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
        self.demand = dqn.demand(config)
        self.remembers: Mapping[str, str] = {}
        self._turn = 0
        self._copies = -1  # whatever is pulled first is copied
        self._copy()

    def exploration(self, agent_steps: int) -> float:
        return dqn.epsilon(self.config, agent_steps)

    def lr(self, agent_steps: int) -> float:
        return dqn.learning_rate(self.config, agent_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values() -> Array:
            a, b = (self._forwards[p](self.modules[p], observation)[0] for p in PARTS)
            return a + b

        return dqn.epsilon_greedy(values, self.actions, exploration, rng), {}

    def targets(self, experience: Batch) -> Batch:
        return experience

    def losses(self, batch: Batch) -> Iterator[Losses]:
        """Of the network whose turn it is."""
        pupil, teacher = PARTS[self._turn % 2], PARTS[1 - self._turn % 2]
        online = self.modules[pupil]
        value = online(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        with torch.no_grad():
            chosen = online(batch.next_observation).argmax(1, keepdim=True)
            future = self.teachers[teacher](batch.next_observation).gather(1, chosen).squeeze(1)
            goal = batch.reward + batch.discount * future
        yield dqn.losses_of(pupil, value, goal)

    def refreshed(self, version: int) -> bool:
        """The turn passes with each update of this learner: versions may skip some."""
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
        slow = self.teachers if self.teachers is not self.modules else {}
        teachers = {part: dqn.arrays_of(module) for part, module in slow.items()}
        return {"turn": self._turn, "copies": self._copies, "teachers": teachers}

    def restore(self, state: State) -> None:
        self._turn, self._copies = state["turn"], state["copies"]
        for part, arrays in state["teachers"].items():
            dqn.load_arrays(self.teachers[part], arrays)


make = DoubleQ
