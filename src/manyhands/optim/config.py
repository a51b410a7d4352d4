"""The section `optim`: which update rule, with which values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from manyhands.types import folders, option

RULES = folders.names(Path(__file__).parent / "rules", "step")


@dataclass(frozen=True)
class Config:
    name: str = option("adam", "optimizer", choices=RULES)
    eps: float = option(
        1e-8, "added to the root (adam, radam, adagrad) or inside it (rmsprop)", above=0
    )
    beta1: float = option(0.9, "adam, radam: decay of the mean gradient", low=0, high=0.9999)
    beta2: float = option(0.999, "adam, radam: decay of the mean square", low=0, high=0.999999)
    decay: float = option(0.95, "rmsprop: decay of the mean square", low=0, high=0.999999)
    centered: bool = option(False, "rmsprop: subtract the squared mean (Nature DQN does)")
    initial: float = option(
        0.0, "adagrad: sum of squares at the start, which shortens the first steps", low=0
    )
    momentum: float = option(0.0, "sgd: momentum", low=0, high=0.9999)
    clip_norm: float = option(10.0, "largest norm of a gradient; 0: no clipping", low=0)
