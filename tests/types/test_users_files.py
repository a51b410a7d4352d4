"""A user's own files: an environment's, and what a file imports from beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands.maths import threads
from manyhands.types import errors, users_files
from support.command_line import SMALL, SMALL_WORDS, assert_told, call

GRIDS = """
import gymnasium as gym
import numpy as np

class Grid(gym.Env):
    metadata = {"render_modes": ["rgb_array"]}
    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=4):
        self.size = size
        self.observation_space = gym.spaces.Discrete(size)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0, 0
        return 0, {}

    def step(self, action):
        self.place = min(max(0, self.place + 2 * int(action) - 1), self.size - 1)
        self.steps += 1
        there = self.place == self.size - 1
        return self.place, float(there), there, self.steps == 20, {}

def small_grid(size=3):
    return Grid(size)

gym.register("Grid-v0", Grid, max_episode_steps=30, reward_threshold=0.9)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "grids.py").write_text(GRIDS)
    return tmp_path


def env_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "config.json").read_text())["config"]
    return found


def shape(run: Path) -> tuple[int, ...]:
    return mh.load(run, allow_code=True).spec.input_shape


def test_an_id_that_a_file_registers(here: Path) -> None:
    assert call("train", "grids.py:Grid-v0", *SMALL_WORDS, "--out=run", "--env.kwargs.size=5") == 0
    assert env_of(here / "run")["env"]["id"] == f"{here}/grids.py:Grid-v0"
    assert env_of(here / "run")["run"]["threshold"] == 0.9
    assert shape(here / "run") == (5,)
    assert call("evaluate", "run", "--episodes=2") == 2
    assert call("evaluate", "run", "--episodes=2", "--allow-code") == 0


@pytest.mark.parametrize(("name", "states"), [("Grid", 4), ("small_grid", 3)])
def test_a_class_or_a_function_of_a_file(here: Path, name: str, states: int) -> None:
    run = mh.train(f"./grids.py:{name}", out=here / "run", **SMALL)
    assert run.plan.task == f"grids.py:{name}"
    assert run.workers.spec.input_shape == (states,)


@pytest.mark.parametrize(
    ("task", "mentions"),
    [
        ("grids.py", ["which class", "Grid-v0", "Grid"]),
        ("grids.py:Gird-v0", ["'Gird-v0'", "Grid-v0"]),
        ("nowhere.py:Grid", ["there is no file", "nowhere.py"]),
        ("broken.py:Grid", ["broken.py", "SyntaxError"]),
        ("leaves.py:Grid", ["leaves.py", "SystemExit"]),
        ("needs.py:Needy", ["needs.py:Needy", "size", "--env.kwargs"]),
    ],
)
def test_what_a_file_does_not_have(
    here: Path, task: str, mentions: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "broken.py").write_text("def (:\n")
    (here / "leaves.py").write_text("raise SystemExit(0)\n")
    (here / "needs.py").write_text("class Needy:\n    def __init__(self, size): ...\n")
    assert call("train", task, *SMALL_WORDS, "--out=run") == 2
    assert_told(capsys.readouterr().err, *mentions)
    assert not (here / "run").exists()


# --- Neighbours ---------------------------------------------------------------------------------

MINE = """
import gentle_numbers
from parts.scales import SCALE
from manyhands.algorithms import dqn

class Config(gentle_numbers.Config): ...

class Mine(dqn.DQN):
    def losses(self, batch):
        from late_numbers import LATE
        assert (self.config.slips, SCALE, LATE) == (0.25, 2, 3)
        yield from super().losses(batch)

make = Mine
"""
GENTLE = """
from dataclasses import dataclass
from manyhands.algorithms import dqn
from manyhands.types import option

@dataclass(frozen=True)
class Config(dqn.Config):
    slips: float = option(0.25, "a number", low=0, high=1)
"""


def write_with_neighbours(folder: Path) -> None:
    (folder / "parts").mkdir(parents=True)
    (folder / "mine.py").write_text(MINE)
    (folder / "gentle_numbers.py").write_text(GENTLE)
    (folder / "late_numbers.py").write_text("LATE = 3\n")
    (folder / "parts" / "scales.py").write_text("import json\nSCALE = 2\n")
    (folder / "unused.py").write_text("raise AssertionError\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_algorithm_that_imports_its_neighbours(here: Path, workers: int) -> None:
    write_with_neighbours(here / "elsewhere")
    strategy = "serial" if workers == 1 else "hogwild"
    words = [
        "--mine.warmup-steps=50",
        "--mine.batch-size=16",
        "--memory.capacity=500",
        "--threads=1",
    ]
    words += [f"--workers={workers}", f"--strategy={strategy}", "--steps=300", "--quiet"]
    assert call("train", "CartPole-v1", "--algorithm=elsewhere/mine.py", *words, "--out=run") == 0
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert summary["updates"] > 10
    assert summary["faults"]["restarts"] == 0


def test_which_files_are_neighbours(here: Path) -> None:
    write_with_neighbours(here / "elsewhere")
    found = users_files.neighbours(here / "elsewhere" / "mine.py")
    assert sorted(found) == ["gentle_numbers", "late_numbers", "parts.scales"]


def test_two_folders_with_a_neighbour_of_one_name(here: Path) -> None:
    for folder, number in (("one", 1), ("two", 2)):
        (here / folder).mkdir()
        (here / folder / "same.py").write_text("from the_number import NUMBER\n")
        (here / folder / "the_number.py").write_text(f"NUMBER = {number}\n")
    assert users_files.load("one/same.py").NUMBER == 1
    assert users_files.load("two/same.py").NUMBER == 2
    assert users_files.load("one/same.py").NUMBER == 1
    (here / "one" / "the_number.py").write_text("NUMBER = 33\n")
    assert users_files.load("one/same.py").NUMBER == 33


def test_a_module_of_the_same_name_is_not_taken_for_a_neighbour(here: Path) -> None:
    (here / "user").mkdir()
    (here / "user" / "taken_name.py").write_text("NUMBER = 1\n")
    __import__("sys").path.insert(0, str(here / "user"))
    assert __import__("taken_name").NUMBER == 1
    (here / "taken_name.py").write_text("NUMBER = 2\n")
    (here / "asks.py").write_text("from taken_name import NUMBER\n")
    assert users_files.load("asks.py").NUMBER == 2


def test_an_entry_point_that_names_its_file_means_this_file(here: Path) -> None:
    text = GRIDS.replace('"Grid-v0", Grid', '"Textual-v0", "textual:Grid"')
    (here / "textual.py").write_text(text.replace("size=4", "size=6"))
    __import__("sys").path.insert(0, str(here / "other"))
    (here / "other").mkdir()
    (here / "other" / "textual.py").write_text("raise AssertionError")
    run = mh.Run("textual.py:Textual-v0", out=here / "run", **SMALL)
    assert run.workers.spec.input_shape == (6,)


def test_a_file_runs_once_for_its_content(here: Path) -> None:
    (here / "once.py").write_text("RUNS = []\n")
    first = users_files.load("once.py")
    assert users_files.load("once.py:RUNS") is first
    (here / "once.py").write_text("RUNS = [1]\n")
    assert users_files.load("once.py").RUNS == [1]


# --- What does not work -------------------------------------------------------------------------

NETS = """
from torch import nn
class Raises:
    def __init__(self, shape):
        raise KeyError("oops")
class Wants(nn.Module):
    def __init__(self, shape, width): ...
class Plain:
    def __init__(self, shape): ...
class Misfit(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(99, 8)
    def forward(self, seen):
        return self.layer(seen)
class Sums(nn.Module):
    def forward(self, seen):
        return seen.sum()
    def __init__(self, shape):
        super().__init__()
"""


@pytest.mark.parametrize(
    ("name", "mentions"),
    [
        ("Raises", ["Raises((4,)) cannot be made", "oops", "nets.py, line 5"]),
        ("Wants", ["Wants((4,)) cannot be made", "width"]),
        ("Plain", ["is a Plain", "nn.Module"]),
        ("Misfit", ["Misfit fails on a batch of shape (1, 4)", "nets.py, line 15", "forward"]),
        ("Sums", ["Sums returns () for", "[batch, features]"]),
    ],
)
def test_a_network_that_does_not_work_is_told_why(
    here: Path, name: str, mentions: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "nets.py").write_text(NETS)
    assert call("train", "CartPole-v1", f"--network=nets.py:{name}", *SMALL_WORDS, "--out=run") == 2
    assert_told(capsys.readouterr().err, *mentions)


def test_an_error_in_the_package_is_placed_in_the_calling_file() -> None:
    with pytest.raises(IndexError) as raised:
        threads.each([])
    assert f" ({Path(__file__).name}, line " in errors.place_of(raised.value)


def test_a_function_that_makes_no_environment() -> None:
    with pytest.raises(mh.BadRequest, match=r"returned builtins.NoneType, not a gymnasium.Env"):
        mh.train(lambda: None, **SMALL)
