"""What an environment says of its episodes reaches the metrics, of one worker and of many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import manyhands as mh
from manyhands.envs.gym import MOST_NUMBERS, numbers
from support.command_line import SMALL


class Orchard(gymnasium.Env[Any, Any]):
    """Ten steps an episode; says how many it was."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.now, self.episodes = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.now, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        self.now += 1
        told = {"apples": np.int64(self.episodes), "kind": "red", "ripe": True}
        ended = self.now == 10
        info = {"episode_metrics": told}  # asked for only where an episode ends
        return np.zeros(2, np.float32), 1.0, False, ended, info


@pytest.mark.parametrize("many", [{}, {"workers": 2, "recipe": "hogwild", "backend": "inprocess"}])
def test_they_reach_file_and_onlooker(many: dict[str, Any], tmp_path: Path) -> None:
    run = mh.Run(Orchard, out=tmp_path / "run", **SMALL | many)
    seen = [metrics["episode_metrics"] for metrics in run]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "charts/episodic_return" in row]
    assert len(rows) == run.summary["episodes"] >= 29
    assert all(row["episode/ripe"] == 1.0 for row in rows)
    assert all("episode/kind" not in row for row in rows)
    hands = many.get("workers", 1)
    assert max(row["episode/apples"] for row in rows) == pytest.approx(30 / hands, abs=2)
    assert any(one.get("apples", 0) > 1 for one in seen)


@pytest.mark.parametrize("info", [None, {}, {"episode_metrics": 3}, {"episode_metrics": [1, 2]}])
def test_what_is_no_table_is_nothing(info: Any) -> None:
    assert numbers(info) == {}


def test_a_number_that_no_float_holds_is_left_out() -> None:
    told = {"apples": 10**400, "debts": -(10**400), "pears": 10**300}
    assert numbers({"episode_metrics": told}) == {"pears": 1e300}


def test_only_some_numbers_with_short_plain_names_are_taken() -> None:
    told: dict[Any, Any] = {"a": 1, "b": np.float32(0.5), 3: 4, "c\x1b": 1, "d" * 99: 1, "e": "1"}
    assert numbers({"episode_metrics": told}) == {"a": 1.0, "b": 0.5}
    many = {str(n): n for n in range(1000)}
    assert len(numbers({"episode_metrics": many})) == MOST_NUMBERS
