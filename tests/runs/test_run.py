"""A run from the outside: its folder, its numbers, its signals, and how it is called."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from torch import nn

import manyhands as mh
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.runs import checkpoint
from manyhands.runs.signals import StopRequests
from support.command_line import ALONE, SECTIONS, SMALL, SMALL_SECTIONS, SMALL_WORDS, call, start

Capture = pytest.CaptureFixture[str]


def read(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    found: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return found


def rows(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=lambda c: pytest.fail(c)) for line in lines]


# --- The folder ---------------------------------------------------------------------------------

SUMMARY = {
    "task", "env", "recipe", "algorithm", "strategy", "backend", "workers", "actors", "learners",
    "seed", "command", "commit", "agent_steps", "frames", "updates", "gradients", "episodes",
    "wall_s", "agent_steps_per_s", "updates_per_s", "return_mean_100", "best_return_mean_100",
    "evaluation", "best_evaluation", "solved", "staleness", "faults", "time_split", "bottleneck",
    "peak_pss_mb", "nodes", "imagined_steps", "model",
}  # fmt: skip
NESTED = {
    "evaluation": {"episodes", "mean", "std"},
    "solved": {"threshold", "episodes", "agent_steps", "wall_s"},
    "staleness": {"mean", "p95", "dropped"},
    "faults": {"restarts", "nonfinite_skipped", "torn_rows", "nodes_lost"},
}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of some seconds that is solved and evaluated; it plays at random, so not too well."""
    path = tmp_path_factory.mktemp("long") / "run"
    options = {**SMALL, "steps": 5000, "threshold": 1.0}
    options["dqn"] = {**SECTIONS["dqn"], "epsilon_end": 0.999, "steps_per_update": 2}
    return mh.train(
        "cartpole", out=path, evaluation={"period_steps": 500, "episodes": 2}, **options
    ).path


def test_the_files_of_a_run(long: Path) -> None:
    names = {path.name for path in long.iterdir()}
    events = {name for name in names if name.startswith("events.out.tfevents")}
    assert len(events) == 1
    assert (long / events.pop()).stat().st_size > 1000
    assert {name for name in names if "tfevents" not in name} == {
        "config.json", "command.txt", "versions.json", "metrics.jsonl", "status.json",
        "checkpoints", "best", "snapshots", "summary.json",
    }  # fmt: skip
    steps = sorted(int(path.name) for path in (long / "checkpoints").iterdir())
    assert steps == [read(long / "summary.json")["agent_steps"]]
    assert {"python", "torch", "numpy", "gymnasium", "manyhands"} <= set(
        read(long / "versions.json")
    )
    assert read(long / "config.json")["task"] == "cartpole"
    assert (long / "command.txt").read_text().strip() == read(long / "summary.json")["command"]


def test_the_fields_of_a_summary(long: Path) -> None:
    summary = read(long / "summary.json")
    assert set(summary) == SUMMARY
    for name, keys in NESTED.items():
        assert set(summary[name]) == keys, name
    assert set(summary["time_split"]) == {"worker"}
    assert set(summary["time_split"]["worker"]) == set(PARTS_OF_TIME)
    assert set(PARTS_OF_TIME) == {
        "env", "act", "sample", "gradient", "pull", "push", "idle", "other"
    }  # fmt: skip


def test_where_there_is_nothing_to_say_it_is_null(here: Path) -> None:
    run = mh.train("toy/identity", out=here / "run", **{**SMALL, "evaluation": {"period_steps": 0}})
    summary = read(run.path / "summary.json")
    assert set(summary) == SUMMARY
    assert summary["evaluation"] is summary["solved"] is summary["best_return_mean_100"] is None
    parts = sum(summary["time_split"]["worker"].values())
    assert parts == pytest.approx(summary["wall_s"], rel=0.05, abs=0.2)


def test_the_numbers_of_a_summary(long: Path) -> None:
    summary = read(long / "summary.json")
    assert (summary["task"], summary["env"], summary["seed"]) == ("cartpole", "CartPole-v1", 1)
    assert (summary["algorithm"], summary["strategy"], summary["backend"]) == (
        "dqn", "serial", "inprocess"
    )  # fmt: skip
    assert (summary["workers"], summary["actors"], summary["learners"]) == (1, 0, 1)
    assert summary["frames"] == summary["agent_steps"]
    assert summary["gradients"] == summary["updates"] > 100
    assert summary["return_mean_100"] <= summary["best_return_mean_100"]
    assert 50 < summary["peak_pss_mb"] < 5000
    assert summary["bottleneck"].split(":")[0] in ("learner-bound", "environment-bound")
    assert summary["evaluation"]["episodes"] == 2
    solved = summary["solved"]
    assert solved["threshold"] == 1.0
    assert solved["episodes"] >= 100
    assert 0 < solved["agent_steps"] <= summary["agent_steps"]
    assert 0 < solved["wall_s"] <= summary["wall_s"]


def test_the_time_split_is_the_wall_time(long: Path) -> None:
    summary = read(long / "summary.json")
    assert summary["wall_s"] > 0.3
    assert sum(summary["time_split"]["worker"].values()) == pytest.approx(
        summary["wall_s"], rel=0.05
    )
    assert summary["time_split"]["worker"]["gradient"] > 0.1 * summary["wall_s"]


def test_rates_leave_out_what_is_not_training(long: Path) -> None:
    """The warm-up, evaluations and checkpoints: so they are above those of the whole, not far."""
    summary = read(long / "summary.json")
    whole = summary["agent_steps"] / summary["wall_s"]
    assert whole <= summary["agent_steps_per_s"] < 20 * whole
    ratio = summary["updates_per_s"] / summary["agent_steps_per_s"]
    assert ratio == pytest.approx(0.5, rel=0.02)


def test_the_status(long: Path) -> None:
    status, summary = read(long / "status.json"), read(long / "summary.json")
    assert status["state"] == "finished"
    assert status["agent_steps"] == summary["agent_steps"]
    assert [set(worker) for worker in status["workers"]] == [
        {"id", "role", "pid", "incarnation", "agent_steps"}
    ]
    worker = status["workers"][0]
    assert (worker["id"], worker["role"], worker["pid"]) == (0, "worker", os.getpid())
    assert worker["agent_steps"] == summary["agent_steps"]


def test_the_metrics(long: Path) -> None:
    found, summary = rows(long), read(long / "summary.json")
    assert all({"agent_steps", "wall_s"} < set(row) for row in found)
    episodes = [row for row in found if "charts/episodic_return" in row]
    assert len(episodes) == summary["episodes"]
    assert all(row["charts/episodic_length"] == row["charts/episodic_return"] for row in episodes)
    assert sum(row["charts/episodic_length"] for row in episodes) <= summary["agent_steps"]
    mean = np.mean([row["charts/episodic_return"] for row in episodes][-100:])
    assert mean == pytest.approx(summary["return_mean_100"])
    reports = [row for row in found if "charts/SPS" in row]
    assert 1 <= len(reports) <= summary["wall_s"] + 1  # about one a second
    names = {"charts/SPS", "charts/UPS", "charts/episodes", "charts/epsilon", "losses/td_loss"}
    assert names <= set(reports[-1])
    assert [row for row in found if "charts/evaluation_return" in row]


def test_metrics_are_strict_json_whatever_the_loss(here: Path) -> None:
    from manyhands.runs.metrics import MetricsFile

    file = MetricsFile(here)
    file.write(1, 0.5, {"losses/td_loss": float("nan"), "losses/norm": float("inf"), "x": 1.0})
    file.close()
    assert rows(here) == [
        {"agent_steps": 1, "wall_s": 0.5, "losses/td_loss": None, "losses/norm": None, "x": 1.0}
    ]


@pytest.mark.parametrize(("lanes", "asked", "taken"), [(1, 100, 100), (3, 100, 102), (4, 100, 100)])
def test_never_fewer_steps_and_at_most_a_vector_step_more(
    lanes: int, asked: int, taken: int, here: Path
) -> None:
    options = {**SMALL, "steps": asked, "envs_per_worker": lanes}
    run = mh.train("cartpole", out=here / "run", **options)
    assert read(run.path / "summary.json")["agent_steps"] == taken
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == [str(taken)]


def test_without_out_a_folder_is_made_under_runs(here: Path) -> None:
    one, two = (mh.train("cartpole", **SMALL).path for _ in range(2))
    assert one != two
    assert {one.parent, two.parent} == {Path("runs").absolute()}
    assert (here / one / "summary.json").is_file()
    assert "cartpole" in one.name


def test_a_finished_runs_summary_stands_still(here: Path) -> None:
    run = mh.train("cartpole", out=here / "run", **SMALL)
    time.sleep(0.05)
    assert run.summary["wall_s"] == read(run.path / "summary.json")["wall_s"]
    run.evaluate(episodes=1)
    assert run.summary == run.summary


def test_solved_ends_it(here: Path) -> None:
    words = ["--until-solved", "--threshold=1", "--steps=50000", "--dqn.steps-per-update=10"]
    assert call("train", "toy/identity", *SMALL_SECTIONS, "--quiet", "--out=run", *words) == 0
    summary = read(here / "run" / "summary.json")
    assert summary["agent_steps"] == summary["solved"]["agent_steps"] == 1000  # of ten steps each
    assert summary["solved"]["episodes"] == summary["episodes"] == 100
    assert summary["solved"]["threshold"] == 1
    assert summary["return_mean_100"] >= 1


# --- Looking on ---------------------------------------------------------------------------------


def test_an_observer_that_stops_also_stops_the_run(here: Path) -> None:
    run = mh.Run("cartpole", out=here / "run", **{**SMALL, "steps": 10**9})
    seen = []
    for metrics in run:
        seen.append(metrics)
        assert read(run.path / "status.json")["state"] == "training"
        if len(seen) == 2:
            break
    assert 0 < seen[0]["agent_steps"] < seen[1]["agent_steps"]
    assert seen[1]["charts/SPS"] > 0
    summary = read(run.path / "summary.json")
    assert summary["agent_steps"] == seen[1]["agent_steps"]
    assert checkpoint.newest(run.path / "checkpoints").step == summary["agent_steps"]
    assert list(run) == []
    more = mh.resume(run.path, steps=summary["agent_steps"] + 10, quiet=True)
    assert more.worker.actor.agent_steps == summary["agent_steps"] + 10


def test_an_error_of_the_onlooker_ends_it_too(here: Path) -> None:
    run = mh.Run("cartpole", out=here / "run", **{**SMALL, "steps": 10**9})

    def look() -> None:
        for _ in run:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        look()
    assert checkpoint.newest(run.path / "checkpoints").step > 0


# --- Signals ------------------------------------------------------------------------------------

ENDLESS = ["--quiet", "--steps=100000000", *SMALL_SECTIONS]


def until(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def session(leader: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and os.getsid(process.pid) == leader:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture
def started(here: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command here; nothing of it outlives the test."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*words: str, code: str = "") -> subprocess.Popen[str]:
        begun.append(start(*words, code=code, cwd=here))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()
        assert session(process.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_ends_with_a_checkpoint(
    number: signal.Signals, here: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    run = here / "run"
    process = started("train", "cartpole", *ENDLESS, "--out=run")
    until((run / "status.json").exists, process)
    assert session(process.pid) == [process.pid]
    assert read(run / "status.json")["workers"][0]["pid"] == process.pid
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err == ""
    assert session(process.pid) == []
    status, summary = read(run / "status.json"), read(run / "summary.json")
    assert status["state"] == "interrupted"
    found = checkpoint.newest(run / "checkpoints")
    assert found.problems == []
    assert found.step == summary["agent_steps"] == status["agent_steps"] > 0
    assert found.replay is not None
    assert call("resume", run, "--quiet", f"--steps={found.step + 100}") == 0
    after = read(run / "summary.json")
    assert after["agent_steps"] == found.step + 100
    assert after["updates"] > summary["updates"]
    assert after["wall_s"] > summary["wall_s"]


SLOW_SAVE = """
import pathlib, time
from manyhands.runs import checkpoint
def save(*words, **options):
    pathlib.Path("saving").touch()
    time.sleep(60)
checkpoint.save = save
"""


def test_a_second_signal_ends_it_at_once(
    here: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started("train", "cartpole", *ENDLESS, "--out=run", code=SLOW_SAVE)
    until((here / "run" / "status.json").exists, process)
    process.send_signal(signal.SIGINT)
    until((here / "saving").exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")


HANGS = """
import ctypes, gymnasium, pathlib
from gymnasium.envs.classic_control import CartPoleEnv
class Hangs(CartPoleEnv):
    steps = 0
    def step(self, action):
        self.steps += 1
        if self.steps == 400:  # deaf to signals, as a simulator in C may be
            mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
            libc.pthread_mutex_lock(mutex)
            pathlib.Path("hangs").touch()
            libc.pthread_mutex_lock(mutex)
        return super().step(action)
gymnasium.register("Hangs-v0", entry_point=Hangs)
"""


def test_what_delays_a_stop_is_said_and_a_second_signal_ends_it(
    here: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started("train", "Hangs-v0", *ENDLESS, "--out=run", code=HANGS)
    until((here / "hangs").exists, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("stopping: waiting for step (")
    assert said.endswith("; again: stop at once\n")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_a_ctrl_c_counts_once_whatever_was_forked() -> None:
    """A terminal sends it to all of its group: a helper must not tell us of its own."""
    with StopRequests() as stop:
        if not (helper := os.fork()):
            os._exit(signal.set_wakeup_fd(-1) != -1)
        assert os.waitpid(helper, 0)[1] == 0, "it would tell us"
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
    assert signal.set_wakeup_fd(-1) == -1


def test_an_environment_that_leaves_the_program_fails_the_run(here: Path) -> None:
    def make() -> Any:
        sys.exit(0)

    with pytest.raises(mh.Failure, match="SystemExit"):
        mh.train(make, out=here / "made", **SMALL)

    class Leaves(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:  # noqa: ARG002
            sys.exit(0)

    with pytest.raises(mh.Failure, match=r"SystemExit.*the 10th break in a row"):
        mh.train(lambda: Leaves(gymnasium.make("CartPole-v1")), out=here / "run", **SMALL)
    assert read(here / "run" / "status.json")["state"] == "failed"


def test_what_leaves_a_run_by_no_exception_of_ours_fails_it(here: Path) -> None:
    """Of the algorithm or a network, say: nothing but the onlooker may end a run well."""
    run = mh.Run("cartpole", out=here / "run", **SMALL)

    def leave(_: Any) -> None:
        raise SystemExit(0)

    run.worker.learner.step = leave  # type: ignore[assignment, method-assign]
    with pytest.raises(SystemExit):
        run.finish()
    assert read(here / "run" / "status.json")["state"] == "failed"


def test_a_killed_run_can_be_resumed(
    here: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    run = here / "run"
    process = started(
        "train", "cartpole", *ENDLESS, "--out=run", "--checkpoint.period_minutes=0.005"
    )

    def saved() -> list[int]:
        return [int(path.parent.name) for path in run.glob("checkpoints/[0-9]*/manifest.json")]

    until(lambda: len(saved()) == 2, process)
    at_least = max(saved())
    process.kill()
    process.communicate()
    assert not (run / "summary.json").exists()
    step = checkpoint.newest(run / "checkpoints").step
    assert step >= at_least
    assert call("resume", run, "--quiet", f"--steps={step + 50}") == 0
    assert read(run / "summary.json")["agent_steps"] == step + 50


def test_resume_if_it_exists(here: Path) -> None:
    words = ["train", "cartpole", *SMALL_WORDS, "--out=run", "--resume-if-exists"]
    assert call(*words) == 0
    first = read(here / "run" / "summary.json")
    assert call(*words, "--steps=500") == 0
    second = read(here / "run" / "summary.json")
    assert (first["agent_steps"], second["agent_steps"]) == (300, 500)
    assert second["updates"] == first["updates"] + 200
    assert second["episodes"] >= first["episodes"]


def test_resume_if_it_was_killed_before_its_first_checkpoint(here: Path) -> None:
    words = ["train", "cartpole", *SMALL_WORDS, "--out=run", "--resume-if-exists"]
    assert call(*words) == 0
    shutil.rmtree(here / "run" / "checkpoints")
    (here / "run" / "summary.json").unlink()
    assert call(*words) == 0
    assert read(here / "run" / "summary.json")["agent_steps"] == 300


# --- One's own ----------------------------------------------------------------------------------


class Own(nn.Module):
    """A torso of one's own."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.mine = nn.Linear(shape[0], 7)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mine(seen))


def make_acrobot() -> Any:
    return gymnasium.make("Acrobot-v1", max_episode_steps=50)


def test_ones_own_environment_and_network(here: Path) -> None:
    options = {**SMALL}
    del options["network"]
    run = mh.train(make_acrobot, network=Own, out=here / "run", **options)
    assert run.worker.env.spec.observation_shape == (6,)
    assert any(".mine." in name for name in run.worker.model.named())
    assert run.summary["episodes"] == 6
    assert run.evaluate(episodes=3).scores == [-50.0] * 3
    policy = mh.load(run.path, network=Own)
    assert policy.act(np.zeros(6)) in range(3)
    with pytest.raises(mh.Failure, match="does not fit"):
        mh.load(run.path)
    more = mh.resume(run.path, make_env=make_acrobot, network=Own, steps=400, quiet=True)
    assert more.worker.actor.agent_steps == 400


NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.mine = nn.Linear(shape[0], 7)
    def forward(self, seen):
        return self.mine(seen).relu()
"""


def test_a_network_file(here: Path, capsys: Capture) -> None:
    (here / "my.py").write_text(NET)
    assert call("train", "cartpole", *SMALL_WORDS, "--network=my.py:Net", "--out=run") == 0
    weights = checkpoint.newest(here / "run" / "checkpoints").weights
    assert any(".mine." in name for name in weights)
    assert call("evaluate", "run", "--episodes=2") == 2
    assert "--allow-code" in capsys.readouterr().err
    assert call("evaluate", "run", "--episodes=2", "--allow-code") == 0
    assert call("resume", "run", "--steps=400", "--allow-code", "--quiet") == 0
    assert mh.load(here / "run", allow_code=True).act(np.zeros(4)) in (0, 1)


ALGORITHM = """
from dataclasses import dataclass
from manyhands.algorithms import dqn
from manyhands.types import option

@dataclass(frozen=True)
class Config(dqn.Config):
    share: float = option(1.0, "how much of the rate", above=0, high=1)
    plain: int = 3

class Mine(dqn.DQN):
    def lr(self, agent_steps):
        return super().lr(agent_steps) * self.config.share

make = Mine
"""


def test_an_algorithm_file(here: Path, capsys: Capture) -> None:
    (here / "my.py").write_text(ALGORITHM)
    words = ["train", "cartpole", "--algorithm=my.py", "--my.warmup-steps=50", "--threads=1"]
    words += ["--memory.capacity=500", "--steps=200", "--quiet"]
    assert call(*words, "--my.share=0.5", "--my.plain=4", "--out=run") == 0
    summary = read(here / "run" / "summary.json")
    assert summary["algorithm"] == str(here / "my.py")  # as it may be resumed from elsewhere
    assert summary["updates"] > 0
    assert read(here / "run" / "config.json")["config"]["my"]["share"] == 0.5
    assert read(here / "run" / "config.json")["config"]["my"]["plain"] == 4
    assert call(*words, "--my.share=2", "--out=no") == 2
    assert "--my.share 2 is out of range" in capsys.readouterr().err
    assert call("train", "cartpole", "--algorithm=my.py", "--help") == 0
    assert "how much of the rate" in capsys.readouterr().out
    assert call("resume", "run", "--steps=300", "--quiet") == 2
    assert call("resume", "run", "--steps=300", "--quiet", "--allow-code") == 0


def test_a_script_needs_no_guard(here: Path) -> None:
    script = here / "script.py"
    script.write_text(
        "import manyhands as mh\n"
        f"run = mh.train('cartpole', out='run', **{SMALL!r})\n"
        "print(run.summary['agent_steps'], len(run.evaluate(episodes=2).scores))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=here, env=ALONE, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["300", "2"]
    assert (here / "run" / "command.txt").read_text().startswith('mh.train("cartpole", out="run"')


# --- Playing ------------------------------------------------------------------------------------


def test_a_policy_acts_on_one_and_on_many(long: Path) -> None:
    policy = mh.load(long)
    one = policy.act(np.zeros(4))
    assert type(one) is int
    assert one in (0, 1)
    batch = np.random.default_rng(1).normal(size=(9, 4))
    many = policy.act(batch)
    assert many.shape == (9,)
    assert [policy.act(seen) for seen in batch] == many.tolist()
    assert len({policy.act(np.zeros(4), epsilon=1.0) for _ in range(50)}) == 2
    for wrong in (np.zeros(3), np.zeros((2, 5)), np.zeros(()), np.zeros((2, 2, 4))):
        with pytest.raises(ValueError, match="shape"):
            policy.act(wrong)


def test_a_loaded_policy_is_the_trained_one(here: Path) -> None:
    run = mh.train("cartpole", out=here / "run", **SMALL)
    seen = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    greedy, _ = run.worker.algorithm.act(seen, np.zeros(50, np.float32), np.random.default_rng(1))
    assert mh.load(run.path).act(seen).tolist() == greedy.tolist()


def test_evaluation_is_repeated_by_its_seed(long: Path, capsys: Capture) -> None:
    found = []
    for words in (["--seed=1"], ["--seed=1"], ["--seed=2"], ["--best", "--epsilon=0.5"]):
        assert call("evaluate", long, "--episodes=5", "--json", *words) == 0
        found.append(json.loads(capsys.readouterr().out))
    keys = {"run", "agent_steps", "epsilon", "seed", "episodes", "mean", "std", "scores", "cut_off"}
    assert all(set(result) == keys for result in found)
    assert found[0] == found[1]
    assert found[0]["scores"] != found[2]["scores"]
    assert found[0]["mean"] == pytest.approx(np.mean(found[0]["scores"]))
    assert (len(found[0]["scores"]), found[0]["episodes"]) == (5, 5)
    best = read(long / "best" / "manifest.json")["step"]
    assert (found[3]["agent_steps"], found[3]["epsilon"]) == (best, 0.5)
    assert found[0]["agent_steps"] == read(long / "summary.json")["agent_steps"]


def test_evaluation_in_a_sentence(long: Path, capsys: Capture) -> None:
    assert call("evaluate", long, "--episodes=3") == 0
    told = capsys.readouterr().out
    assert told.startswith("cartpole: ")
    assert "over 3 episodes" in told
