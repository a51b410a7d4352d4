"""DQN: Q-learning with a deep network, a replay memory and a target network (Mnih et al. 2015).

This is DQN with epsilon-greedy exploration, which decays from 1 after a random warm-up, and the
Huber loss. Options are:
- n-step returns, which the memory computes;
- Double DQN (van Hasselt et al. 2016): the online network chooses the action, the target network
  values it;
- dueling heads (Wang et al. 2016).

It differs from the Nature paper:
- recipes and tasks choose Adam and 3-step returns, unless the recipe keeps the paper's values;
- the loss is the mean over a batch;
- the target period counts updates, not frames;
- the target network values the next observations of several batches at once. A new copy of it is
  used from the next draw on, at most `replay.AT_ONCE` - 1 updates late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.maths import losses, policies, schedules
from manyhands.networks import heads
from manyhands.networks.forward import Forward, Gradients, Mode
from manyhands.types import Algorithm, Array, Batch, Demand, EnvSpec, Losses, State, restored
from manyhands.types.data import Options, option

if TYPE_CHECKING:
    from manyhands.networks.average import Average

REMEMBERED = {"q_taken": "float32", "q_best": "float32"}


@dataclass(frozen=True)
class QLearning(Options):
    """The options of every deep Q-learning with replay."""

    lr: float = option(1e-4, "learning rate", above=0)
    lr_decay_steps: int = option(
        0, "agent steps over which lr falls linearly to a tenth; 0: constant", low=0
    )
    batch_size: int = option(32, "transitions per update", low=1)
    steps_per_update: float = option(4.0, "agent steps per update", above=0)
    warmup_steps: int = option(
        10_000, "agent steps with random actions before the first update", low=0
    )
    gamma: float = option(0.99, "discount per agent step", low=0, high=1)
    n_step: int = option(1, "rewards summed before the bootstrap", low=1, high=64)
    dueling: bool = option(False, "dueling heads: one stream for the value, one for the advantages")
    epsilon_end: float = option(0.01, "epsilon after its decay", low=0, high=1)
    epsilon_decay_steps: int = option(
        100_000, "agent steps over which epsilon falls linearly from 1", low=0
    )
    epsilon_spread: float = option(
        0.0,
        "Ape-X: environment i of N explores with epsilon ** (1 + this * i / (N - 1)); 0: all alike",
        low=0,
    )

    def epsilon(self, agent_steps: int) -> float:
        return schedules.epsilon(
            agent_steps,
            warmup_steps=self.warmup_steps,
            decay_steps=self.epsilon_decay_steps,
            end=self.epsilon_end,
        )

    @property
    def replay_demand(self) -> Demand:
        return demand(self)


class Scheduled(Algorithm):
    """What follows from the options of `QLearning` alone."""

    config: QLearning

    def exploration(self, agent_steps: int) -> float:
        return self.config.epsilon(agent_steps)

    def lr(self, agent_steps: int) -> float:
        config = self.config
        return schedules.learning_rate(agent_steps, config.lr, config.lr_decay_steps)


@dataclass(frozen=True)
class Config(QLearning):
    target_period_updates: int = option(
        1_000, "updates between two copies to the target network", low=1
    )
    double: bool = option(
        False, "Double DQN: the online network chooses, the target network values"
    )
    average_updates: int = option(
        0, "act with the mean of the parameters after so many updates; 0: with the newest", low=0
    )
    remember_values: bool = option(
        False, "keep the actor's Q-values; a prioritized memory derives first priorities from them"
    )


class DQN(Scheduled):
    config: Config

    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.actions = spec.actions
        self.online = network(config.dueling, spec, torso).to(self.device)
        self.target = network(config.dueling, spec, torso).to(self.device).requires_grad_(False)
        self.average = averaged(self.online, config.average_updates)
        self.modules: Mapping[str, nn.Module] = {"q": self.average or self.online}
        self._acting = self.average.mean if self.average else self.online
        self._forward, self._forward_target = Forward(self.device), Forward(self.device)
        self._gradients = Gradients()
        self._evaluating = Mode(self.online, training=False)
        self.demand = demand(config)
        self.remembers: Mapping[str, str] = REMEMBERED if config.remember_values else {}
        self._copies = -1  # so the first pull copies
        self._copy()

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values() -> Array:
            return self._forward(self._acting, observation)[0]

        if not self.config.remember_values:
            return policies.epsilon_greedy(values, self.actions, exploration, rng), {}
        q_values = values()
        action = policies.epsilon_greedy(lambda: q_values, self.actions, exploration, rng)
        return action, remembered_values(q_values, action)

    def targets(self, experience: Batch) -> Batch:
        (values,) = self._forward_target.tensors(self.target, experience.next_observation)
        return experience.plus(next_values=values)

    def losses(self, batch: Batch) -> Iterator[Losses]:
        yield self.toward(batch, batch.reward.addcmul(batch.discount, self._bootstrap(batch)))

    def toward(self, batch: Batch, goal: Tensor) -> Losses:
        """The Huber losses; `goal` is what the values of the actions taken should be."""
        return q_losses("q", self._gradients, self.online, batch, goal, losses.huber)

    def _bootstrap(self, batch: Batch) -> Tensor:
        values = batch.columns["next_values"]
        if not self.config.double:
            return values.amax(1)
        with self._evaluating:
            (online,) = self._forward.tensors(self.online, batch.next_observation)
        chosen = online.argmax(1, keepdim=True)
        return values.gather(1, chosen).squeeze(1)

    def refreshed(self, version: int) -> bool:
        """Copies at each change of period, up or down.

        A restarted learner may have the target of a learner that is ahead of it.
        """
        if self.average:
            self.average.follow()
        periods = version // self.config.target_period_updates
        due = periods != self._copies
        if due:
            self._copies = periods
            self._copy()
        return due

    def _copy(self) -> None:
        self.target.load_state_dict(self.online.state_dict())

    def state(self) -> State:
        return {"copies": self._copies, "target": heads.arrays_of(self.target)}

    def restore(self, state: State) -> None:
        self._copies = restored.count(state, "copies", least=-1)
        heads.load_arrays(self.target, state["target"])


# --- What the family shares -----------------------------------------------------------------


def demand(config: QLearning) -> Demand:
    return Demand(
        batch_size=config.batch_size,
        steps_per_update=config.steps_per_update,
        warmup_steps=config.warmup_steps,
        n_step=config.n_step,
        gamma=config.gamma,
    )


def remembered_values(values: Array, action: Array) -> dict[str, Array]:
    """The values of the actions taken, and the largest values."""
    return {"q_taken": values[np.arange(len(action)), action], "q_best": values.max(1)}


def q_losses(
    part: str,
    gradients: Gradients,
    network: nn.Module,
    batch: Batch,
    goal: Tensor,
    loss: losses.Loss,
) -> Losses:
    """The losses of the values of the actions taken; `goal` is what they should be."""
    (values,) = gradients(network, batch.observation)
    errors = losses.td_errors(values, batch.action, goal, loss)

    def backward(weight: Tensor) -> None:
        gradients.backward(errors.by_values(weight))

    shown = {"q_values": errors.value, "td_error": errors.error}
    return Losses(part, errors.loss, errors.size, shown, backward, gradients.replaces)


def averaged(network: nn.Module, updates: int) -> Average | None:
    if not updates:
        return None
    from manyhands.networks.average import Average  # few agents have one

    return Average(network, updates)


def network(dueling: bool, spec: EnvSpec, torso: Callable[[], nn.Module]) -> nn.Module:
    """A Q-network, in evaluation mode."""
    body = torso()
    dtype = torch.uint8 if spec.frame_dtype == "uint8" else torch.float32
    features = heads.features_of(body, spec.observation_shape, dtype)
    head = heads.DuelingNetwork if dueling else heads.QNetwork
    made = head(body, features, spec.actions).eval()
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


make = DQN
