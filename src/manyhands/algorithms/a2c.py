"""A2C: advantage actor-critic on rollouts of many environments (Mnih et al. 2016).

There it is asynchronous; PAAC (Clemente et al. 2017) is this with many environments.

This is A2C with: n-step returns, or GAE (`lam` below 1) as an option; an entropy bonus; one torso
under both heads, or two networks (`shared` false), the actor and the critic each a part with an
optimizer of its own. A3C is this under a strategy that shares parameters without locks.

It differs from the paper in that advantages use the values seen while acting, which are those of
the same parameters unless another worker changed them meanwhile, and in what the recipe chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands import returns
from manyhands.networks.heads import ActorCritic, PolicyNetwork, ValueNetwork, features_of
from manyhands.networks.quick import Forward
from manyhands.types import Array, Batch, EnvSpec, Losses, Rollout, RolloutDemand, State, knob


@dataclass(frozen=True)
class OnPolicy:
    """What every algorithm that learns from rollouts can be told."""

    lr: float = knob(7e-4, "learning rate", above=0)
    lr_decay_steps: int = knob(
        0, "agent steps over which it falls to a hundredth; 0: constant", low=0
    )
    rollout_steps: int = knob(5, "steps of every environment in a rollout", low=1)
    gamma: float = knob(0.99, "discount of a step", low=0, high=1)
    lam: float = knob(1.0, "weight of longer returns: 0 one step, 1 all of them", low=0, high=1)


@dataclass(frozen=True)
class PolicyGradient(OnPolicy):
    """What every actor-critic can be told."""

    entropy: float = knob(0.01, "bonus for a policy that is not sure", low=0)
    value_weight: float = knob(0.5, "of the critic's loss beside the actor's", low=0)
    shared: bool = knob(True, "one torso for actor and critic; false: two networks")


@dataclass(frozen=True)
class Config(PolicyGradient):
    normalize: bool = knob(False, "advantages of a rollout to mean 0 and deviation 1")


class A2C:
    def __init__(
        self, config: Config, *, spec: EnvSpec, torso: Callable[[], nn.Module], device: str = "cpu"
    ) -> None:
        self.config = config
        self.networks = Networks(config, spec, torso, device)
        self.modules = self.networks.modules
        self.demand = RolloutDemand(config.rollout_steps, 1, 1, config.gamma)
        self.remembers: Mapping[str, str] = {"value": "float32"}

    def exploration(self, agent_steps: int) -> float:  # noqa: ARG002
        """Always by the policy's own chances."""
        return 1.0

    def lr(self, agent_steps: int) -> float:
        return learning_rate(self.config, agent_steps)

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        logits, value = self.networks.of_array(observation)
        return sampled(logits, exploration, rng), {"value": value}

    def targets(self, experience: Rollout) -> Rollout:
        return with_advantages(experience, self.networks, self.config.lam)

    def losses(self, batch: Batch) -> Iterator[Losses]:
        advantage, goal = batch.columns["advantage"], batch.columns["goal"]
        if self.config.normalize:
            advantage = normalized(advantage)

        def judge(logits: Tensor, _: Tensor) -> Judged:
            chance = policy(logits, batch.action)
            return Judged(-advantage * chance.log_prob, chance.entropy, goal, {})

        yield from actor_critic_losses(self.config, self.networks, batch, judge)

    def refreshed(self, version: int) -> bool:  # noqa: ARG002
        """There is no target network."""
        return False

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


# --- What the family shares -----------------------------------------------------------------


def learning_rate(config: OnPolicy, agent_steps: int) -> float:
    """Linearly down to a hundredth; constant without a decay."""
    decay = config.lr_decay_steps
    return config.lr * (1.0 - 0.99 * min(1.0, agent_steps / decay) if decay else 1.0)


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
            made = torso()
            return made, features_of(made, spec.observation_shape, dtype)

        found: dict[str, nn.Module]
        if config.shared:
            found = {"policy": ActorCritic(*body(), spec.actions)}
        else:
            found = {
                "actor": PolicyNetwork(*body(), spec.actions),
                "critic": ValueNetwork(*body()),
            }
        self.modules: Mapping[str, nn.Module] = {
            part: module.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            for part, module in found.items()
        }
        self._forwards = {part: Forward(self.device) for part in self.modules}

    def both(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the actions, and the value."""
        if "policy" in self.modules:
            logits, value = self.modules["policy"](observation)
            return logits, value
        return self.modules["actor"](observation), self.modules["critic"](observation)

    def value(self, observation: Tensor) -> Tensor:
        """The value alone, without gradient."""
        with torch.no_grad():
            if "policy" in self.modules:
                return self.both(observation)[1]
            value: Tensor = self.modules["critic"](observation)
            return value

    def of_array(self, observation: Array) -> tuple[Array, Array]:
        logits, value = (
            array
            for part, module in self.modules.items()
            for array in self._forwards[part](module, observation)
        )
        return logits, value


def sampled(logits: Array, exploration: Array, rng: np.random.Generator) -> Array:
    """By chance, as the policy has it, in that share of the rows; the likeliest in the others.

    Adding Gumbel noise and taking the largest draws from the softmax without computing it.
    """
    noise: Array = rng.gumbel(size=logits.shape)
    noise *= (rng.random(len(logits)) < exploration)[:, None]
    action: Array = (logits + noise).argmax(1).astype(np.int32)
    return action


def log_probability(logits: Array, action: Array) -> Array:
    """Of the actions taken, as the policy has it."""
    shifted = logits - logits.max(1, keepdims=True)
    taken = shifted[np.arange(len(action)), action]
    chance: Array = taken - np.log(np.exp(shifted).sum(1))
    return chance


def with_advantages(rollout: Rollout, networks: Networks, lam: float) -> Rollout:
    """GAE from the values seen while acting; the goal of the value is what they add up to."""
    value = rollout.columns["value"]
    following = returns.next_values(value, networks.value(rollout.after), rollout.after_at)
    advantage = returns.gae(rollout.reward, rollout.discount, value, following, rollout.ended, lam)
    found = {"advantage": advantage, "goal": advantage + value}
    return replace(rollout, columns={**rollout.columns, **found})


def normalized(advantage: Tensor) -> Tensor:
    """To mean 0 and deviation 1; one alone is left as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


class Chance(NamedTuple):
    log_prob: Tensor  # [b] of the action taken
    entropy: Tensor  # [b]


def policy(logits: Tensor, action: Tensor) -> Chance:
    log_probs = F.log_softmax(logits, 1)
    log_prob = log_probs.gather(1, action[:, None]).squeeze(1)
    return Chance(log_prob, -(log_probs.exp() * log_probs).sum(1))


class Judged(NamedTuple):
    """What became of a batch: the actor's loss, and what the critic should have said."""

    actor: Tensor  # [b]
    entropy: Tensor  # [b]
    goal: Tensor  # [b]
    diagnostics: Mapping[str, Tensor]


Judge = Callable[[Tensor, Tensor], Judged]  # of logits and values


def actor_critic_losses(
    config: PolicyGradient, networks: Networks, batch: Batch, judge: Judge
) -> Iterator[Losses]:
    """The actor's loss, the entropy bonus, the critic's squared error: together, or a part each."""
    logits, value = networks.both(batch.observation)
    judged = judge(logits, value)
    error = judged.goal - value
    surprise, shown = error.detach().abs(), _diagnostics(judged, value)
    actor = judged.actor - config.entropy * judged.entropy
    critic = config.value_weight * error.square()
    if "policy" in networks.modules:
        yield Losses("policy", actor + critic, surprise, shown)
        return
    yield Losses("actor", actor, surprise, shown)
    yield Losses("critic", critic, surprise, shown)


def _diagnostics(judged: Judged, value: Tensor) -> Mapping[str, Tensor]:
    shown = {"policy_loss": judged.actor, "entropy": judged.entropy, "value": value}
    return {**{name: tensor.detach() for name, tensor in shown.items()}, **judged.diagnostics}


make = A2C
