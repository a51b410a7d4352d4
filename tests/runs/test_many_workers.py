"""Many workers: alone each strategy is serial to the last bit; together they survive kill -9."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

import manyhands as mh
from manyhands.config import registry
from manyhands.runs import checkpoint
from support.small_runs import SHARED as SMALL
from support.small_runs import assert_equal, weights

STRATEGIES = registry.names("strategies")
ISLANDS: dict[str, dict[str, Any]] = {
    "hogwild_plus_plus": {"island_size": 2, "hogwild_plus_plus": {"hold_updates": 2}},
    "dogwild": {"island_size": 2},
}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> mh.Run:
    return mh.train("cartpole", steps=600, out=tmp_path_factory.mktemp("serial") / "run", **SMALL)


@pytest.mark.parametrize("backend", ["inprocess", "processes"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_worker_is_serial_bit_for_bit(
    strategy: str, backend: str, serial: mh.Run, tmp_path: Path
) -> None:
    run = mh.train(
        "cartpole", strategy=strategy, backend=backend, steps=600, out=tmp_path / "run", **SMALL
    )
    assert run.summary["updates"] == serial.summary["updates"] > 100
    assert run.summary["staleness"] == {"mean": 0.0, "p95": 0.0, "dropped": 0}
    assert run.summary["backend"] == backend
    assert_equal(run, serial)


@pytest.mark.parametrize(
    "options", [{"hogwild": {"copy": True}}, {"hogwild": {"statistics": "own"}}]
)
def test_so_is_every_kind_of_hogwild(options: Any, serial: mh.Run, tmp_path: Path) -> None:
    run = mh.train(
        "cartpole", strategy="hogwild", steps=600, out=tmp_path / "r", **SMALL, **options
    )
    assert_equal(run, serial)


@pytest.mark.parametrize("transport", ["slots", "queue"])
def test_so_are_many_shards(transport: str, serial: mh.Run, tmp_path: Path) -> None:
    run = mh.train(
        "cartpole", strategy="parameter_server", backend="processes", steps=600,
        parameter_server={"shards": 3, "transport": transport}, out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    assert_equal(run, serial)


@pytest.mark.parametrize("strategy", registry.shared())
def test_so_are_rollouts_and_two_parts(strategy: str, tmp_path: Path) -> None:
    """Every action is the policy's, so that acting with old weights is found out."""

    def train(strategy: str) -> mh.Run:
        return mh.train(
            "cartpole", recipe="paac", strategy=strategy, backend="inprocess", steps=600,
            a2c={"shared": False}, envs_per_worker=4, threads=1, network={"hidden": (16,)},
            quiet=True, out=tmp_path / strategy,
        )  # fmt: skip

    assert_equal(train(strategy), train("serial"))


@pytest.mark.parametrize("strategy", registry.shared())
def test_turns_in_process_repeat_bit_for_bit(strategy: str, tmp_path: Path) -> None:
    def train(name: str, seed: int) -> mh.Run:
        return mh.train(
            "cartpole", strategy=strategy, backend="inprocess", workers=3, seed=seed, steps=700,
            out=tmp_path / name, **SMALL, **ISLANDS.get(strategy, {}),
        )  # fmt: skip

    one, same, other = train("one", 3), train("same", 3), train("other", 4)
    assert_equal(one, same)
    assert any((weights(one)[name] != weights(other)[name]).any() for name in weights(one))
    assert one.summary["updates"] > 100
    if strategy in ("allreduce", "proximal"):  # all push together
        assert one.summary["staleness"] == {"mean": 0.0, "p95": 0.0, "dropped": 0}
    else:
        assert one.summary["staleness"]["mean"] > 0


def test_looking_at_turns_in_process_does_not_change_them(tmp_path: Path) -> None:
    def train(name: str) -> mh.Run:
        how: dict[str, Any] = {"strategy": "lock", "backend": "inprocess", "workers": 3, "seed": 3}
        return mh.Run("cartpole", out=tmp_path / name, steps=400, **how, **SMALL)

    plain, watched = train("plain"), train("watched")
    plain.finish()
    looked = watched.progress.schedule
    looked.report_due = lambda: True  # type: ignore[method-assign]  # as on a slow machine
    watched.finish()
    assert_equal(plain, watched)


@pytest.mark.parametrize("strategy", registry.shared())
def test_two_processes_end_with_the_steps_asked_for(strategy: str, tmp_path: Path) -> None:
    run = mh.train(
        "cartpole", strategy=strategy, workers=2, steps=1500, out=tmp_path / "run", **SMALL
    )
    summary = json.loads((run.path / "summary.json").read_text())
    assert 1500 <= summary["agent_steps"] <= 1500 + 2 * 4
    assert summary["backend"] == "processes"
    assert summary["updates"] > 300
    assert summary["episodes"] > 10
    status = json.loads((run.path / "status.json").read_text())
    assert status["agent_steps"] == summary["agent_steps"]
    assert not psutil.Process().children(recursive=True)


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize("strategy", registry.shared())
def test_a_killed_worker_is_replaced(strategy: str, tmp_path: Path) -> None:
    run = mh.Run(
        "cartpole", strategy=strategy, workers=2, steps=8000, out=tmp_path / "run", **SMALL
    )
    killed = 0
    for _ in run:
        process_table = json.loads((run.path / "status.json").read_text())["workers"]
        workers = [row for row in process_table if row["role"] == "worker" and row["pid"]]
        if not killed and workers and run.workers.updates > 50:
            killed = workers[0]["pid"]
            os.kill(killed, signal.SIGKILL)
    assert killed
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["faults"]["restarts"] == 1
    assert 8000 <= summary["agent_steps"] <= 8000 + 2 * 4
    (fault,) = [json.loads(line) for line in (run.path / "faults.jsonl").read_text().splitlines()]
    assert str(killed) in str(fault)
    assert "SIGKILL" in str(fault)
    assert "incarnation 1" in str(fault)


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize("transport", ["slots", "queue"])
def test_a_killed_shard_keeps_its_slice(transport: str, tmp_path: Path) -> None:
    large = {**SMALL, "network": {"hidden": (64,)}}  # enough for two slices
    run = mh.Run(
        "cartpole", strategy="parameter_server", workers=2, steps=8000, out=tmp_path / "run",
        parameter_server={"shards": 2, "transport": transport}, **large,
    )  # fmt: skip
    shared: Any = run.workers.strategy

    def first_shard() -> tuple[int, int]:
        """Its version, and how many steps its optimizer remembers."""
        return int(shared.versions.rows()[0, 0]), int(shared._steps[0][0]._slots["count"])

    killed, known = 0, (0, 0)
    for _ in run:
        shards = [row for row in run.workers.process_table() if row["role"].startswith("shard")]
        assert len({row["pid"] for row in shards}) == 2
        if not killed and run.workers.updates > 50:
            killed, known = shards[0]["pid"], first_shard()
            os.kill(killed, signal.SIGKILL)
    assert killed
    assert run.summary["agent_steps"] >= 8000
    version, steps = first_shard()
    assert min(known) > 0
    assert version > known[0] + 50, "it continued from there"
    assert abs(steps - version) <= 1, "one may have been cut off between the two"
    assert any(
        "shard" in line and "SIGKILL" in line
        for line in (run.path / "faults.jsonl").read_text().splitlines()
    )
    assert all(np.isfinite(array).all() for array in weights(run).values())


@pytest.mark.parametrize("strategy", registry.shared())
def test_many_workers_resume(strategy: str, tmp_path: Path) -> None:
    first = mh.train(
        "cartpole", strategy=strategy, workers=2, steps=800, out=tmp_path / "run", **SMALL
    )
    before = weights(first)
    more = mh.resume(first.path, steps=1600, quiet=True)
    assert more.summary["agent_steps"] >= 1600
    assert more.summary["updates"] > first.summary["updates"]
    assert more.summary["episodes"] > first.summary["episodes"]
    assert any((weights(more)[name] != before[name]).any() for name in before)


@pytest.mark.parametrize(
    ("roles", "scope"), [({"workers": 2}, "local"), ({"actors": 2, "learners": 2}, "global")]
)
def test_priorities_are_in_a_checkpoint_of_many_workers(
    roles: dict[str, Any], scope: str, tmp_path: Path
) -> None:
    options = SMALL | {"memory": {"capacity": 400, "kind": "prioritized", "scope": scope}}
    run = mh.train(
        "cartpole", strategy="hogwild", backend="processes", steps=800, **roles,
        out=tmp_path / "run", **options,
    )  # fmt: skip
    workers: Any = run.workers
    before = workers.shared_lanes
    again: Any = mh.Run.resumed(run.path, steps=1600)
    for reader in range(2):
        marks, kept = again.workers.shared_lanes.priorities(reader), before.priorities(reader)
        assert marks.largest == kept.largest
        np.testing.assert_array_equal(marks.leaves, kept.leaves)
        np.testing.assert_array_equal(marks.taken, kept.taken)
    learned = [again.workers.shared_lanes.priorities(reader).leaves for reader in range(2)]
    assert max(len(np.unique(leaves)) for leaves in learned) > 20
    again.finish()
    assert again.summary["agent_steps"] >= 1600


PERIODS: list[tuple[str, dict[str, Any]]] = [
    ("hogwild", {"copy": True, "sync_every": 5}),
    ("parameter_server", {"push_every": 3, "fetch_every": 5}),
]


@pytest.mark.parametrize(("strategy", "values"), PERIODS)
def test_to_look_at_what_one_worker_learns_does_not_change_it(
    strategy: str, values: dict[str, Any], tmp_path: Path
) -> None:
    """Its own copy, ahead of the shared parameters, comes back after every look."""
    period: dict[str, Any] = {strategy: values}

    def train(name: str, **options: Any) -> mh.Run:
        return mh.train(
            "cartpole", strategy=strategy, steps=600, out=tmp_path / name, **SMALL | options,
            **period,
        )  # fmt: skip

    looked_at = train(
        "often", checkpoint={"period_minutes": 0.0005}, evaluation={"period_steps": 100}
    )
    assert_equal(looked_at, train("never"))


def test_a_worker_that_is_told_to_stop_closes_its_environments(tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    class Closing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            with closed.open("a") as file:
                file.write(f"{os.getpid()}\n")
            super().close()

    mains = os.getpid()
    many: list[dict[str, Any]] = [{"workers": 2}, {"actors": 2}]
    for roles in many:
        run = mh.Run(
            lambda: Closing(gymnasium.make("CartPole-v1")), strategy="hogwild", steps=10**9,
            out=tmp_path / str(roles), **roles, **SMALL | {"envs_per_worker": 1},
        )  # fmt: skip
        for _ in run:
            if run.workers.updates > 20 and min(run.workers.counters.rows()[:2, 0]) > 0:
                break
        pids = [int(pid) for pid in closed.read_text().split() if int(pid) != mains]
        assert len(set(pids)) == 2, roles
        closed.unlink()


def test_resuming_a_finished_run_leaves_no_process(tmp_path: Path) -> None:
    options = SMALL | {"strategy": "parameter_server", "workers": 2, "steps": 400}
    mh.train("cartpole", out=tmp_path / "run", **options)
    again = mh.Run("cartpole", out=tmp_path / "run", resume_if_exists=True, **options)
    assert not psutil.Process().children(recursive=True)
    again.finish()
    assert len(again.evaluate(episodes=2).scores) == 2


def test_what_came_with_the_last_turn_is_counted(tmp_path: Path) -> None:
    """Slow turns in which an episode ends with every step."""

    class Short(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            observation, reward, _, _, info = self.env.step(action)
            return observation, reward, True, False, info

    run = mh.train(
        lambda: Short(gymnasium.make("CartPole-v1")), strategy="hogwild", workers=2, steps=60,
        out=tmp_path / "run", **SMALL | {"envs_per_worker": 1},
    )  # fmt: skip
    assert run.summary["episodes"] == run.summary["agent_steps"]


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize("roles", [{"workers": 2}, {"actors": 2}])
def test_the_target_network_outlives_its_learner(roles: dict[str, Any], tmp_path: Path) -> None:
    """With a period that never ends it stays what it was copied from, also after a kill."""
    options = SMALL | {"dqn": {**SMALL["dqn"], "target_period_updates": 10**9}}
    run = mh.Run(
        "cartpole", strategy="hogwild", steps=10**9, out=tmp_path / "run", **roles, **options
    )
    target, known = dict[str, np.ndarray](), 0
    for _ in run:
        assert run.workers.kept_state is not None
        there = run.workers.kept_state.get()
        learner = next(
            row for row in run.workers.process_table() if row["role"] in ("worker", "learner")
        )
        if not target and run.workers.updates > 50 and there["copies"] == 0:
            target = there["target"]
            os.kill(learner["pid"], signal.SIGKILL)
            known = run.workers.gradients
        if target and learner["incarnation"] == 1 and run.workers.gradients > known + 500:
            break

    def check() -> None:
        kept = checkpoint.newest(run.path / "checkpoints")
        assert kept.state["algorithm"]["copies"] == 0
        for name, array in target.items():
            np.testing.assert_array_equal(kept.state["algorithm"]["target"][name], array)
            assert (kept.weights[f"q.{name}"] != array).any()

    check()
    again = mh.resume(run.path, steps=run.summary["agent_steps"] + 800, quiet=True)
    assert again.summary["updates"] > run.summary["updates"]
    check()
