"""A2C: advantage actor-critic on rollouts of many environments (Mnih et al. 2016).

Mnih et al. run it asynchronously (A3C): that is this algorithm under a strategy that shares
parameters without locks. PAAC (Clemente et al. 2017) is this algorithm with many environments.

This is A2C with n-step returns, or GAE where `lam` is below 1, and an entropy bonus. Actor and
critic share a torso, or are two networks (`shared` false), each with its own optimizer.

It differs from the paper: advantages use the values computed while acting. Those come from the
same parameters, unless another worker has changed them since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.maths import losses, policies, returns, schedules
from manyhands.networks.forward import Forward, Gradients
from manyhands.networks.heads import ActorCritic, PolicyNetwork, ValueNetwork, features_of
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
class OnPolicy:
    """The options of every algorithm that learns from rollouts."""

    lr: float = option(7e-4, "learning rate", above=0)
    lr_decay_steps: int = option(
        0, "agent steps over which lr falls linearly to a tenth; 0: constant", low=0
    )
    rollout_steps: int = option(5, "steps per environment in a rollout", low=1)
    gamma: float = option(0.99, "discount per agent step", low=0, high=1)
    lam: float = option(
        1.0, "lambda of returns and GAE: 0 one step, 1 the whole rollout", low=0, high=1
    )


@dataclass(frozen=True)
class PolicyGradient(OnPolicy):
    """The options of every actor-critic."""

    entropy: float = option(0.01, "weight of the entropy bonus", low=0)
    value_weight: float = option(0.5, "weight of the critic's loss", low=0)
    shared: bool = option(True, "actor and critic share a torso; false: two networks")


@dataclass(frozen=True)
class Config(PolicyGradient):
    normalize: bool = option(
        False, "scale advantages of a rollout to mean 0 and standard deviation 1"
    )


class A2C(Algorithm):
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.networks = Networks(config, spec, torso, device)
        self.modules = self.networks.modules
        self.demand = RolloutDemand(config.rollout_steps, 1, 1, config.gamma)
        self.remembers: Mapping[str, str] = {"value": "float32"}

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
        return policies.sampled(logits, exploration, rng), {"value": value}

    def targets(self, experience: Rollout) -> Rollout:
        return with_advantages(experience, self.networks, self.config.lam)

    def losses(self, batch: Batch) -> Iterator[Losses]:
        advantage, goal = batch.columns["advantage"], batch.columns["goal"]
        if self.config.normalize:
            advantage = losses.normalized(advantage)

        def objective(log_prob: Tensor, _: Tensor) -> Terms:
            return Terms(*losses.policy_gradient(log_prob, advantage), goal, {})

        yield from actor_critic_losses(self.config, self.networks, batch, objective)

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """There is no state."""


# --- What the family shares -----------------------------------------------------------------


class Networks:
    """One torso with two heads, as the part "policy"; or two networks, "actor" and "critic"."""

    def __init__(
        self,
        config: PolicyGradient,
        spec: EnvSpec,
        torso: Callable[[], nn.Module],
        device: str,
    ) -> None:
        self.device = torch.device(device)
        dtype = torch.uint8 if spec.frame_dtype == "uint8" else torch.float32

        def body() -> tuple[nn.Module, int]:
            module = torso()
            return module, features_of(module, spec.observation_shape, dtype)

        networks: dict[str, nn.Module]
        if config.shared:
            networks = {"policy": ActorCritic(*body(), spec.actions)}
        else:
            networks = {
                "actor": PolicyNetwork(*body(), spec.actions),
                "critic": ValueNetwork(*body()),
            }
        self.modules: Mapping[str, nn.Module] = {
            part: module.eval().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            for part, module in networks.items()
        }
        self._forwards = {part: Forward(self.device) for part in self.modules}
        self.gradients = {part: Gradients() for part in self.modules}

    def both(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the actions and the value, for a backward pass."""
        logits, value = (
            tensor
            for part, module in self.modules.items()
            for tensor in self.gradients[part](module, observation)
        )
        return logits, value

    def backward(self, part: str, by_logits: Tensor, by_value: Tensor) -> None:
        """From the gradients of the loss by the outputs of `both` that this part computes."""
        given = {"policy": (by_logits, by_value), "actor": (by_logits,), "critic": (by_value,)}
        self.gradients[part].backward(*given[part])

    def value(self, observation: Tensor) -> Tensor:
        """The value alone, without gradient."""
        part = "policy" if "policy" in self.modules else "critic"
        return self._forwards[part].tensors(self.modules[part], observation)[-1]

    def of_array(self, observation: Array) -> tuple[Array, Array]:
        logits, value = (
            array
            for part, module in self.modules.items()
            for array in self._forwards[part](module, observation)
        )
        return logits, value


def with_advantages(rollout: Rollout, networks: Networks, lam: float) -> Rollout:
    """Adds GAE from the values computed while acting, and the goal: advantage plus value."""
    value = rollout.columns["value"]
    following = returns.next_values(value, networks.value(rollout.after), rollout.after_at)
    advantage = returns.gae(rollout.reward, rollout.discount, value, following, rollout.ended, lam)
    added = {"advantage": advantage, "goal": advantage + value}
    return replace(rollout, columns={**rollout.columns, **added})


class Terms(NamedTuple):
    """What an objective computes for a batch."""

    actor: Tensor  # [b] the actor's loss
    slope: Tensor  # [b] its derivative by the log-probability
    goal: Tensor  # [b] what the value should be
    diagnostics: Mapping[str, Tensor]


Objective = Callable[[Tensor, Tensor], Terms]  # of log-probabilities of the actions, and values


def actor_critic_losses(
    config: PolicyGradient, networks: Networks, batch: Batch, objective: Objective
) -> Iterator[Losses]:
    """The actor's loss, the entropy bonus and the critic's squared error, for one part or two."""
    logits, value = networks.both(batch.observation)
    policy = policies.policy_terms(logits, batch.action)
    terms = objective(policy.log_prob, value)
    error = terms.goal - value
    shown = {"policy_loss": terms.actor, "entropy": policy.entropy, "value": value}
    shown |= terms.diagnostics
    each = {
        "actor": terms.actor - config.entropy * policy.entropy,
        "critic": config.value_weight * error.square(),
    }
    each["policy"] = each["actor"] + each["critic"]

    def backward(part: str, weight: Tensor) -> None:
        by_logits = policy.gradient(batch.action, terms.slope * weight, -config.entropy * weight)
        networks.backward(part, by_logits, (-2 * config.value_weight) * error * weight)

    for part in networks.modules:
        replaces = networks.gradients[part].replaces
        yield Losses(part, each[part], error.abs(), shown, partial(backward, part), replaces)


make = A2C
