"""Imagined episodes: they begin in real states and continue as long as the model is trusted.

Many run side by side, like the environments of an actor. Every turn makes one action in each. An
episode is over when it has probably ended, when the model is not sure what follows, or after
`horizon` actions. Then another begins, in a real state.

When an episode is over, each of its actions becomes a step to learn from. The step's reward is the
discounted sum from there to the last observation of the episode. Only the first action may be
another than the policy's, so these sums are what the policy would get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manyhands.networks.world import Imagined
from manyhands.types import State, restored

# Of observations, and of whether an episode begins there -> actions.
Act = Callable[[Tensor, Tensor], Tensor]
Predict = Callable[[Tensor, Tensor], Imagined]  # of observations and actions


class Steps(NamedTuple):
    """b imagined steps to learn from."""

    observation: Tensor  # [b, d]
    action: Tensor  # [b] int64
    reward: Tensor  # [b] discounted sums
    discount: Tensor  # [b] float32; of the value of the next observation
    next_observation: Tensor  # [b, d]; the last one of the episode
    origin: Tensor  # [b] int64; the row of the real state in which the episode began


class Episodes:
    """`count` of them, of observations of `size` numbers."""

    def __init__(
        self, count: int, size: int, *, horizon: int, gamma: float, device: torch.device
    ) -> None:
        self.horizon, self._gamma = horizon, gamma
        self._observation = torch.zeros(count, size, device=device)
        self._origin = torch.zeros(count, dtype=torch.int64, device=device)
        self._age = torch.zeros(count, dtype=torch.int64, device=device)  # actions so far
        self._before = torch.zeros(horizon, count, size, device=device)
        self._action = torch.zeros(horizon, count, dtype=torch.int64, device=device)
        self._reward = torch.zeros(horizon, count, device=device)
        self._continues = torch.zeros(horizon, count, device=device)

    def turn(self, real: Tensor, origin: Tensor, act: Act, predict: Predict) -> tuple[Steps, float]:
        """One action in each episode. Returns the steps of the episodes that are over, and the
        share of actions whose outcome is not trusted.

        `real`: [count, d] observations to begin in, one for each episode; `origin`: their rows.
        """
        begins = self._age == 0
        before = torch.where(begins[:, None], real, self._observation)
        self._origin = torch.where(begins, origin, self._origin)
        action = act(before, begins)
        step = predict(before, action)
        self._note(before, action, step)
        age = self._age + step.trusted
        over = ~step.trusted | (age >= self.horizon) | (step.continues <= 0.5)
        self._observation = torch.where(step.trusted[:, None], step.observation, before)
        made = self._learned(torch.where(over, age, 0))
        self._age = torch.where(over, 0, age)
        return made, 1.0 - float(step.trusted.float().mean())

    def _note(self, before: Tensor, action: Tensor, step: Imagined) -> None:
        at = self._age, torch.arange(len(action), device=action.device)
        self._before[at], self._action[at] = before, action
        self._reward[at], self._continues[at] = step.reward, step.continues

    def _learned(self, ages: Tensor) -> Steps:
        """The steps of episodes of so many actions."""
        sums, discount = torch.zeros_like(self._reward), torch.zeros_like(self._continues)
        counts = torch.arange(self.horizon, device=ages.device)[:, None] < ages
        total, left = torch.zeros_like(ages, dtype=sums.dtype), torch.ones_like(sums[0])
        for at in range(self.horizon - 1, -1, -1):
            each, onward = counts[at], self._gamma * self._continues[at]
            total = torch.where(each, self._reward[at] + onward * total, total)
            left = torch.where(each, onward * left, left)
            sums[at], discount[at] = total, left
        last = self._observation.expand(self.horizon, -1, -1)
        origin = self._origin.expand(self.horizon, -1)
        parts = self._before, self._action, sums, discount, last, origin
        return Steps(*(part[counts] for part in parts))

    # --- Checkpoints ------------------------------------------------------------------------

    def _parts(self) -> dict[str, Tensor]:
        return {
            "observation": self._observation, "origin": self._origin, "age": self._age,
            "before": self._before, "action": self._action,
            "reward": self._reward, "continues": self._continues,
        }  # fmt: skip

    def state(self) -> State:
        return {name: part.numpy(force=True).copy() for name, part in self._parts().items()}

    def restore(self, state: State) -> None:
        for name, part in self._parts().items():
            part.copy_(torch.from_numpy(restored.array(state, name, part.numpy(force=True))))
