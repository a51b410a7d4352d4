"""Buffers of a user's network belong to the model: kept, restored, and shared by a stated rule."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands import optim
from manyhands.backends.inprocess.late import MOST_READS
from manyhands.optim.buffers import Buffers
from manyhands.roles import counters, jobs
from manyhands.runs import snapshots
from manyhands.types import BadRequest, Failure, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])
SMALL: dict[str, Any] = {
    "quiet": True, "threads": 1, "envs_per_worker": 2, "evaluation": {"period_steps": 0},
    "memory": {"capacity": 2000}, "seed": 5,
    "dqn": {"warmup_steps": 40, "steps_per_update": 2, "batch_size": 8, "lr": 1e-2,
            "target_period_updates": 10, "epsilon_decay_steps": 50},
}  # fmt: skip


class Counting(nn.Module):
    """What it says depends on its buffers: features drawn by lot, and how often it has learned."""

    features: Tensor
    learned: Tensor
    mean: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(shape[0], 8))
        self.register_buffer("learned", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(shape[0]))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.layer = nn.Linear(8, 8)

    def forward(self, seen: Tensor) -> Tensor:
        if self.training:
            self.learned += 1
            self.mean = 0.9 * self.mean + 0.1 * seen.mean(0)  # another tensor each time
        return torch.relu(self.layer((seen - 3 * self.mean) @ self.features))


class Restless(Counting):
    """Counts whenever it is asked, whatever the mode."""

    def forward(self, seen: Tensor) -> Tensor:
        self.learned += 1
        return super().forward(seen)


def train(out: Path, *, network: Any = Counting, **options: Any) -> mh.Run:
    return mh.train("toy/identity", network=network, out=out, **{**SMALL, **options})


def buffers(model: optim.FlatModel) -> dict[str, np.ndarray]:
    return {name.removeprefix("q.torso."): array for name, array in model.buffers.arrays().items()}


def learned(model: optim.FlatModel) -> int:
    return int(buffers(model)["learned"])


def assert_the_same(one: optim.FlatModel, other: optim.FlatModel) -> None:
    theirs = other.named()
    for name, array in one.named().items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def loaded(run: mh.Run, **options: Any) -> optim.FlatModel:
    return optim.FlatModel(mh.load(run.path, network=Counting, **options).algorithm.modules)


# --- One worker ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> mh.Run:
    return train(tmp_path_factory.mktemp("buffers") / "whole", steps=400)


def test_what_is_loaded_is_what_was_trained(whole: mh.Run) -> None:
    assert learned(whole.workers.model) == whole.summary["updates"] > 100
    assert_the_same(whole.workers.model, loaded(whole))
    policy = mh.load(whole.path, network=Counting)
    seen = np.eye(4, dtype=np.float32)
    ours, _ = whole.workers.algorithm.act(seen, np.zeros(4, np.float32), np.random.default_rng(0))
    assert policy.act(seen).tolist() == ours.tolist()


def test_a_resumed_run_continues_exactly(whole: mh.Run, tmp_path: Path) -> None:
    train(tmp_path / "half", steps=200)
    half = mh.resume(tmp_path / "half", steps=400, network=Counting, quiet=True)
    assert_the_same(whole.workers.model, half.workers.model)
    for name, array in half.worker.algorithm.state()["target"].items():
        np.testing.assert_array_equal(array, whole.worker.algorithm.state()["target"][name])


def test_target_networks_have_the_buffers_of_their_copy(whole: mh.Run) -> None:
    target = whole.worker.algorithm.state()["target"]
    kept = buffers(whole.workers.model)
    np.testing.assert_array_equal(target["torso.features"], kept["features"])
    assert 0 <= kept["learned"] - target["torso.learned"] <= 10 < target["torso.learned"]


def test_the_best_and_snapshots_have_them(tmp_path: Path) -> None:
    run = train(tmp_path / "run", steps=1000, evaluation={"period_steps": 400, "episodes": 2})
    assert 0 < learned(loaded(run, best=True)) <= learned(run.workers.model)
    shot = snapshots.nearest(run.path, 1000)
    assert shot is not None
    assert 0 < shot.weights["q.torso.learned"] <= learned(run.workers.model)


def test_evaluating_does_not_disturb_training(tmp_path: Path) -> None:
    run = train(tmp_path / "run", network=Restless, steps=60)
    before = learned(run.workers.model)
    run.evaluate(episodes=2)
    assert learned(run.workers.model) == before


# --- Many ---------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, optim.FlatModel]:
    """The models of all workers of a run in this process."""
    found: dict[str, optim.FlatModel] = {}

    def watch(role: type[Any], method: str, name: str, model: Any) -> None:
        make = getattr(role, method)

        def watched(self: Any, rank: Rank, *args: Any) -> Any:
            it = make(self, rank, *args)
            found[f"{name}{rank.index}"] = model(it)
            return it

        monkeypatch.setattr(role, method, watched)

    watch(jobs.WorkerJob, "make", "worker", lambda it: it.model)
    watch(jobs.ActorJob, "_make", "actor", lambda it: it[2])
    watch(jobs.LearnerJob, "_make", "learner", lambda it: it.model)
    return found


@pytest.mark.parametrize(
    "strategy", ["lock", "hogwild", "parameter_server", "gossip", "allreduce", "proximal"]
)
def test_the_first_learners_buffers_are_the_models(
    strategy: str, made: dict[str, optim.FlatModel], tmp_path: Path
) -> None:
    run = train(tmp_path / "run", strategy=strategy, workers=2, backend="inprocess", steps=400)
    first, second = made["worker0"], made["worker1"]
    updates = run.workers.counters.rows()[:, counters.UPDATES].tolist()
    assert learned(run.workers.model) == learned(first) == updates[0] > 50
    assert_the_same(run.workers.model, loaded(run))
    mine, other, saved = buffers(first), buffers(second), buffers(run.workers.model)
    for name in mine:
        np.testing.assert_array_equal(saved[name], mine[name])
    np.testing.assert_array_equal(other["features"], mine["features"])  # by lot, but one lot
    if strategy in ("allreduce", "proximal"):  # each its own, in step
        assert learned(second) == updates[1]
        assert not np.array_equal(other["mean"], mine["mean"])
    else:
        late = 2 + MOST_READS  # as the first had it at the last pull, which may have been late
        assert abs(learned(second) - learned(first)) <= late


def test_actors_take_buffers_with_the_weights_also_when_resumed(
    made: dict[str, optim.FlatModel], tmp_path: Path
) -> None:
    given = {"actors": 2, "backend": "inprocess", "publish_every": 1}
    given["memory"] = {"capacity": 2000, "ahead_steps": 40}
    run = train(tmp_path / "run", steps=400, **given)
    updates = run.summary["updates"]
    assert learned(made["learner2"]) == learned(run.workers.model) == updates
    for actor in (made["actor0"], made["actor1"]):
        assert updates - 30 <= learned(actor) <= updates
        np.testing.assert_array_equal(
            buffers(actor)["features"], buffers(run.workers.model)["features"]
        )
    more = mh.resume(run.path, steps=800, network=Counting, quiet=True)
    assert learned(more.workers.model) == more.summary["updates"] > updates
    np.testing.assert_array_equal(
        buffers(more.workers.model)["features"], buffers(run.workers.model)["features"]
    )


@pytest.mark.usefixtures("_looks_often")
def test_a_restarted_learner_continues_with_them(tmp_path: Path) -> None:
    run = mh.Run(
        "toy/identity", network=Counting, strategy="hogwild", workers=2, steps=8_000,
        out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    killed = 0
    for _ in run:
        first = [row["pid"] for row in run.workers.process_table() if row["id"] == 0 and row["pid"]]
        if not killed and first and run.workers.updates > 100:
            killed = first[0]
            os.kill(killed, signal.SIGKILL)
    assert killed
    assert run.summary["faults"]["restarts"] == 1
    updates = int(run.workers.counters.rows()[0, counters.UPDATES])
    assert updates - 2 <= learned(run.workers.model) <= updates


# --- Refusals -----------------------------------------------------------------------------------


def module(buffer: Tensor) -> nn.Module:
    made = nn.Linear(2, 2)
    made.register_buffer("kept", buffer)
    return made


def test_what_a_checkpoint_cannot_hold_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"the buffer a\.kept is of torch\.bfloat16"):
        Buffers({"a": module(torch.zeros(2, dtype=torch.bfloat16))})


def test_a_buffer_that_changes_its_form_is_said() -> None:
    network = module(torch.zeros(2, dtype=torch.int64))
    kept = Buffers({"a": network})
    network.kept = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(Failure, match=r"a\.kept was \(2,\) of torch\.int64 and is \(3,\)"):
        kept.arrays()
    network.kept = torch.zeros(2)
    with pytest.raises(Failure, match=r"of torch\.float32"):
        kept.arrays()


def test_what_does_not_fit_is_not_loaded() -> None:
    kept = Buffers({"a": module(torch.zeros(2))})
    with pytest.raises(KeyError):
        kept.load({})
    with pytest.raises(ValueError, match=r"a\.kept is \(3,\), not \(2,\)"):
        kept.load({"a.kept": np.zeros(3)})
