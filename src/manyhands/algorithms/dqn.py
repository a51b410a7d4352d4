"""DQN: Q-learning with a deep network, a replay memory and a target network (Mnih et al. 2015).

This is DQN with: epsilon-greedy exploration that decays from 1 after a random warm-up; the Huber
loss; n-step returns as an option (they come with the batch); Double DQN (van Hasselt et al. 2016)
as an option: the prediction network chooses the action, the target network values it; dueling
heads (Wang et al. 2016) as an option.

It differs from the Nature paper in what the recipe chooses (Adam, batch-mean loss) and in that
the target period counts updates, not frames. The target network values all next observations of
a draw (several batches) in one go, so a copy of it counts from the next draw on, at most
`replay.AT_ONCE` - 1 updates late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.networks.heads import DuelingNetwork, QNetwork, features_of
from manyhands.networks.quick import Forward
from manyhands.types import Array, Batch, Demand, EnvSpec, Losses, State, knob

REMEMBERED = {"q_taken": "float32", "q_best": "float32"}


@dataclass(frozen=True)
class QLearning:
    """What every kind of deep Q-learning can be told."""

    lr: float = knob(1e-4, "learning rate", above=0)
    lr_decay_steps: int = knob(0, "agent steps over which it falls to a tenth; 0: constant", low=0)
    batch_size: int = knob(32, "transitions in a gradient", low=1)
    steps_per_update: float = knob(4.0, "agent steps between two updates", above=0)
    warmup_steps: int = knob(10_000, "random agent steps before learning begins", low=0)
    gamma: float = knob(0.99, "discount of a step", low=0, high=1)
    n_step: int = knob(1, "rewards summed before the bootstrap", low=1, high=64)
    dueling: bool = knob(False, "value and advantages apart, in two streams")
    epsilon_end: float = knob(0.01, "exploration once decayed", low=0, high=1)
    epsilon_decay_steps: int = knob(100_000, "agent steps from 1 to the end, linear", low=0)
    epsilon_spread: float = knob(
        0.0, "environments explore differently: from the end to its power of 1 + this", low=0
    )


@dataclass(frozen=True)
class Config(QLearning):
    target_period_updates: int = knob(1_000, "updates between two copies to the target", low=1)
    double: bool = knob(False, "Double DQN: choose by prediction, value by target")
    remember_values: bool = knob(
        False, "rows keep the actor's own Q-values: first priorities of a prioritized memory"
    )


class DQN:
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.actions = spec.actions
        self.online = network(config.dueling, spec, torso).to(self.device)
        self.target = network(config.dueling, spec, torso).to(self.device).requires_grad_(False)
        self.modules: Mapping[str, nn.Module] = {"q": self.online}
        self._forward = Forward(self.device)
        self.demand = demand(config)
        self.remembers: Mapping[str, str] = REMEMBERED if config.remember_values else {}
        self._copies = -1  # whatever is pulled first is copied
        self._copy()

    def exploration(self, agent_steps: int) -> float:
        return epsilon(self.config, agent_steps)

    def lr(self, agent_steps: int) -> float:
        return learning_rate(self.config, agent_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        def values() -> Array:
            return self._forward(self.online, observation)[0]

        if not self.config.remember_values:
            return epsilon_greedy(values, self.actions, exploration, rng), {}
        seen = values()
        action = epsilon_greedy(lambda: seen, self.actions, exploration, rng)
        return action, valued(seen, action)

    def targets(self, experience: Batch) -> Batch:
        with torch.no_grad():
            values = self.target(experience.next_observation)
        return replace(experience, columns={**experience.columns, "next_values": values})

    def losses(self, batch: Batch) -> Iterator[Losses]:
        value = self.online(batch.observation).gather(1, batch.action[:, None]).squeeze(1)
        with torch.no_grad():
            goal = batch.reward + batch.discount * self._bootstrap(batch)
        yield losses_of("q", value, goal)

    def _bootstrap(self, batch: Batch) -> Tensor:
        values = batch.columns["next_values"]
        if not self.config.double:
            return values.amax(1)
        chosen = self.online(batch.next_observation).argmax(1, keepdim=True)
        return values.gather(1, chosen).squeeze(1)

    def refreshed(self, version: int) -> bool:
        """Who took over another's target may be behind it, where versions are a learner's own."""
        periods = version // self.config.target_period_updates
        due = periods != self._copies
        if due:
            self._copies = periods
            self._copy()
        return due

    def _copy(self) -> None:
        self.target.load_state_dict(self.online.state_dict())

    def state(self) -> State:
        return {"copies": self._copies, "target": arrays_of(self.target)}

    def restore(self, state: State) -> None:
        self._copies = state["copies"]
        load_arrays(self.target, state["target"])


# --- What the family shares -----------------------------------------------------------------


def demand(config: QLearning) -> Demand:
    return Demand(
        batch_size=config.batch_size,
        steps_per_update=config.steps_per_update,
        warmup_steps=config.warmup_steps,
        n_step=config.n_step,
        gamma=config.gamma,
    )


def epsilon(config: QLearning, agent_steps: int) -> float:
    """1 during the warm-up, then linearly down to the end."""
    since = max(0, agent_steps - config.warmup_steps)
    decayed = min(1.0, since / max(1, config.epsilon_decay_steps))
    return 1.0 + decayed * (config.epsilon_end - 1.0)


def learning_rate(config: QLearning, agent_steps: int) -> float:
    """Linearly down to a tenth; constant without a decay."""
    decay = config.lr_decay_steps
    return config.lr * (1.0 - 0.9 * min(1.0, agent_steps / decay) if decay else 1.0)


def epsilon_greedy(
    values: Callable[[], Array], actions: int, exploration: Array, rng: np.random.Generator
) -> Array:
    """The best action of each row, or any with that row's chance. Asks for values if needed."""
    explore = rng.random(len(exploration)) < exploration
    some = np.count_nonzero(explore)
    if some == len(explore):
        return rng.integers(actions, size=some, dtype=np.int32)
    chosen: Array = values().argmax(1).astype(np.int32)
    if some:
        chosen[explore] = rng.integers(actions, size=some)
    return chosen


def valued(values: Array, action: Array) -> dict[str, Array]:
    """What the actions taken were thought worth, and the best ones."""
    return {"q_taken": values[np.arange(len(action)), action], "q_best": values.max(1)}


def losses_of(part: str, value: Tensor, goal: Tensor) -> Losses:
    """Huber's, for these values of the actions taken and what they should have been."""
    error = goal - value.detach()
    huber = F.huber_loss(value, goal, reduction="none")
    return Losses(part, huber, error.abs(), {"q_values": value.detach(), "td_error": error})


def network(dueling: bool, spec: EnvSpec, torso: Callable[[], nn.Module]) -> nn.Module:
    body = torso()
    dtype = torch.uint8 if spec.frame_dtype == "uint8" else torch.float32
    features = features_of(body, spec.observation_shape, dtype)
    head = DuelingNetwork if dueling else QNetwork
    return head(body, features, spec.actions).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def arrays_of(module: nn.Module) -> State:
    return {name: value.cpu().numpy().copy() for name, value in module.state_dict().items()}


def load_arrays(module: nn.Module, arrays: State) -> None:
    found = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    module.load_state_dict(found)


make = DQN
