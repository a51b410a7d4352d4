"""The update rules, one file each. A rule works on one slice of the flat vector."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from torch import Tensor

from manyhands.optim.config import Config

Slots = dict[str, Tensor]


class Rule(Protocol):
    """What the file of a rule has."""

    def new_slots(self, config: Config, vector: Tensor) -> Slots:
        """The state that it begins with for this vector."""

    def step(
        self, vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config
    ) -> None:
        """Changes the vector and the slots in place."""


def of(config: Config) -> Rule:
    """The rule of this name, from its file."""
    file: Any = import_module(f"manyhands.optim.rules.{config.name}")
    rule: Rule = file
    return rule
