"""What cannot be played is refused with the way out; and the room is light to import."""

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from manyhands.envs import Config, make
from manyhands.types import BadRequest


def refusal(id: str) -> Any:
    with pytest.raises(BadRequest) as caught:
        make(Config(id=id), lanes=1, seed=np.random.SeedSequence(1), threads=1)
    return caught.value


@pytest.mark.parametrize(
    ("id", "nearest"),
    [
        ("brakout", "breakout"),
        ("cartpole", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("lunar_lander", "LunarLander"),
        ("ALE/Brakout-v5", "breakout"),
        ("PogNoFrameskip-v4", "pong"),
        ("toy/identty", "toy/identity"),
        ("nowhere/CartPole-v1", "CartPole-v1"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(id: str, nearest: str) -> None:
    refused = refusal(id)
    assert repr(id) in refused.what
    assert nearest in refused.remedy


@pytest.mark.parametrize(
    ("id", "namespace"),
    [("ALE/NoSuchGame-v5", ""), ("ALE/Pushr-v5", ""), ("manyhands/CartPole-v1", "manyhands/")],
)
def test_no_name_of_another_namespace_is_suggested(id: str, namespace: str) -> None:
    remedy = refusal(id).remedy
    suggested = remedy.partition("Did you mean ")[2].removesuffix("?")
    assert not suggested or suggested.startswith(namespace)
    assert "-v5" not in suggested


@pytest.mark.parametrize("id", ["", "zzzzzzzzzzzz-v0", "no_such_module:Env-v0", "CartPole-v1.5!"])
def test_what_resembles_nothing_is_refused_too(id: str) -> None:
    assert refusal(id).remedy


@pytest.mark.parametrize("id", ["breakout", "ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_without_the_emulator_its_extra_is_named(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(sys.modules, "manyhands.envs.atari", raising=False)
    monkeypatch.delattr("manyhands.envs.atari", raising=False)
    assert 'pip install "manyhands[atari]"' in refusal(id).remedy


def test_without_the_emulator_a_gymnasium_name_is_still_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(sys.modules, "manyhands.envs.atari", raising=False)
    monkeypatch.delattr("manyhands.envs.atari", raising=False)
    assert "CartPole-v1" in refusal("cartpole").remedy


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Box2D is not installed, run pip", 'pip install "manyhands[box2d]"'),
        ("mujoco is not installed, run `pip install mujoco`", "pip install mujoco"),
    ],
)
def test_a_missing_package_is_named(
    message: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled(message)

    monkeypatch.setattr(gymnasium, "make", absent)
    assert remedy in refusal("LunarLander-v3").remedy


@pytest.mark.parametrize("id", ["HalfCheetah-v5", "Ant-v4", "BipedalWalker-v3", "CarRacing-v3"])
def test_continuous_actions_are_refused_before_a_missing_package(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("not there, run `pip install mujoco`")

    monkeypatch.setattr(gymnasium, "make", absent)
    refused = refusal(id)
    assert f"{id} has continuous actions" in refused.what
    assert "install" not in refused.remedy


def test_where_nothing_is_known_of_the_actions_both_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("No module named 'robots'")

    monkeypatch.setattr(gymnasium, "make", absent)
    refused = refusal("robots:Arm-v0")
    assert "No module named 'robots'" in refused.what
    assert "Install that module" in refused.remedy
    assert "discrete" in refused.remedy


@pytest.mark.parametrize("missing", ["observation_space", "action_space"])
@pytest.mark.parametrize("value", [None, 4])
def test_an_environment_without_spaces_is_told(missing: str, value: Any) -> None:
    class Bare(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = gymnasium.spaces.Discrete(2)

    setattr(Bare, missing, value)
    if value is None:
        delattr(Bare, missing)
    seeds = np.random.SeedSequence(1)
    with pytest.raises(BadRequest) as caught:
        make(Config(id="own/Bare"), lanes=1, seed=seeds, threads=1, factory=Bare)
    assert f"Bare has no {missing}" in caught.value.what
    assert f"self.{missing}" in caught.value.remedy


def test_importing_the_room_imports_no_games() -> None:
    code = (
        "import sys, manyhands.envs; "
        "print([m for m in ('gymnasium', 'ale_py', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
