"""A user's file may leave out what has a default."""

from __future__ import annotations

from pathlib import Path

from manyhands.config import plans, presets, registry
from manyhands.types import Options

ALGORITHM = """
from dataclasses import dataclass
from manyhands.types import option

@dataclass(frozen=True)
class Config:
    lr: float = option(0.5, "learning rate")

def make(config, *, spec, torso, device): ...
"""
BACKEND = "def make(seed, *, hang_s=0.0): ..."


def test_a_plain_config_has_the_defaults_of_options(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ALGORITHM)
    flags: presets.Layer = {"run": {"algorithm": str(file)}, "mine": {"lr": 0.25}}
    plan, again = (plans.resolve("cartpole", flags) for _ in range(2))
    assert isinstance(plan.algorithm, Options)
    assert plan.as_layer()["mine"] == {"lr": 0.25}
    assert plan.algorithm == again.algorithm
    assert plan.algorithm.epsilon_spread == 0
    assert plan.algorithm.replay_demand is None
    assert plan.flag(plan.algorithm, "lr") == "--mine.lr"


def test_a_backend_need_not_say_how_many_processes_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "runner.py"
    file.write_text(BACKEND)
    assert registry.backend(str(file)).MOST_PROCESSES is None
    assert registry.backend("inprocess").MOST_PROCESSES is None
    assert (registry.backend("processes").MOST_PROCESSES or 0) > 100
