"""Imagined episodes: they begin in real states and continue as long as the model is trusted.

Many run side by side, like the environments of an actor. Every turn makes one step of each. An
episode is over when it has probably ended, when the members of the ensemble disagree, or after
`horizon` steps. Then another begins, in a real state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from manyhands.networks.world import Imagined
from manyhands.types import State, restored

Predict = Callable[[Tensor, Tensor], Imagined]  # of observations and actions


class Steps(NamedTuple):
    """b imagined steps to learn from."""

    observation: Tensor  # [b, d]
    action: Tensor  # [b] int64
    reward: Tensor  # [b]
    continues: Tensor  # [b] float32; 0: the episode ends
    next_observation: Tensor  # [b, d]
    origin: Tensor  # [b] int64; the row of the real state in which the episode began


class Episodes:
    """`count` of them, of observations of `size` numbers."""

    def __init__(self, count: int, size: int, horizon: int, device: torch.device) -> None:
        self.horizon = horizon
        self._observation = torch.zeros(count, size, device=device)
        self._origin = torch.zeros(count, dtype=torch.int64, device=device)
        self._age = torch.full((count,), horizon, device=device)  # so all begin now

    def turn(
        self,
        real: Tensor,
        origin: Tensor,
        act: Callable[[Tensor], Tensor],
        predict: Predict,
    ) -> tuple[Steps, float]:
        """One step of each episode. Returns those that are trusted, and the share that is not.

        `real`: [count, d] observations to begin in, one for each episode; `origin`: their rows.
        """
        over = self._age >= self.horizon
        before = torch.where(over[:, None], real, self._observation)
        self._origin = torch.where(over, origin, self._origin)
        action = act(before)
        step = predict(before, action)
        made = Steps(before, action, step.reward, step.continues, step.observation, self._origin)
        kept = step.trusted
        self._observation = step.observation
        age = torch.where(over, 1, self._age + 1)
        self._age = torch.where(kept & (step.continues > 0.5), age, self.horizon)
        return Steps(*(part[kept] for part in made)), 1.0 - float(kept.float().mean())

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        parts = {"observation": self._observation, "origin": self._origin, "age": self._age}
        return {name: part.numpy(force=True).copy() for name, part in parts.items()}

    def restore(self, state: State) -> None:
        for name, part in (
            ("observation", self._observation), ("origin", self._origin), ("age", self._age)
        ):  # fmt: skip
            part.copy_(torch.from_numpy(restored.array(state, name, part.numpy(force=True))))
