"""What happens before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import manyhands as mh

FEW: dict[str, Any] = {"steps": 8, "envs_per_worker": 3, "evaluation": {"period_steps": 0}}
FEW |= {"memory": {"capacity": 200}, "dqn": {"warmup_steps": 4, "batch_size": 2}}


class Watched(gym.Env):
    """Says when it was made and when it was first reset."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, said: list[str]) -> None:
        self.said = said
        said.append("made")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        self.said.append("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:  # noqa: ARG002
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_run_says_that_it_makes_environments_before_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setattr("manyhands.viewing.display.Plain.say", lambda _, line: said.append(line))
    mh.Run(lambda: Watched(said), out=tmp_path / "a", quiet=False, **FEW)
    headline = f"{said[0].split()[0]} by dqn: dqn x serial, 8 agent steps"
    in_order = [headline, "making 3 environment(s)", "made", "resetting them", "reset"]
    assert [word for at, word in enumerate(said) if word not in said[:at]] == in_order
    mh.Run(lambda: Watched(said), out=tmp_path / "b", quiet=True, **FEW)
    assert sum("making" in word for word in said) == 1


def test_lines_before_the_picture_are_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    from manyhands.viewing import display

    display.teller("cartpole by dqn", quiet=False)("making 3 environment(s)")
    display.teller("nothing", quiet=True)("nothing")
    assert capsys.readouterr().out == "cartpole by dqn\nmaking 3 environment(s)\n"


def test_to_know_what_workers_environments_are_like_one_is_made(tmp_path: Path) -> None:
    """An emulator takes a twentieth of a second of its processor."""
    said: list[str] = []
    workers: dict[str, Any] = {"strategy": "lock", "workers": 2, "backend": "inprocess"}
    run = mh.Run(lambda: Watched(said), out=tmp_path / "run", **FEW, **workers)
    assert said.count("made") == 1
    assert run.workers.spec.lanes == 3
    run.finish()
    assert said.count("made") == 1 + 2 * 3


def test_a_run_says_about_how_long_many_emulators_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ale-py makes all in one call, which shows no progress."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr("manyhands.envs.EMULATOR_S", 3.0)
    said: list[str] = []
    monkeypatch.setattr("manyhands.viewing.display.Plain.say", lambda _, line: said.append(line))
    few = {**FEW, "envs_per_worker": 2, "threads": 2, "recipe": "dqn"}
    mh.Run("breakout", out=tmp_path / "run", quiet=False, network={"precision": "float32"}, **few)
    assert "making 2 environment(s), about 6 s" in said
    assert "resetting them, about 3 s" in said
