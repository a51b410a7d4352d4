"""Dropout and batch norm: training mode for gradients, evaluation mode for all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import manyhands as mh
from manyhands.config import registry
from manyhands.networks import heads, torsos
from manyhands.networks.config import Config
from manyhands.networks.forward import Mode, mode_dependent

SMALL: dict[str, Any] = {
    "quiet": True, "threads": 1, "envs_per_worker": 1, "evaluation": {"period_steps": 0},
    "memory": {"capacity": 500}, "seed": 5,
}  # fmt: skip
OFF_POLICY = {"warmup_steps": 20, "steps_per_update": 2, "batch_size": 8}
ON_POLICY = {"rollout_steps": 8}
CASES = {
    "dqn": {**OFF_POLICY, "double": False},
    "dqn double": {**OFF_POLICY, "double": True, "target_period_updates": 5},
    "dqn remembering": {**OFF_POLICY, "remember_values": True},
    "double_q": {**OFF_POLICY, "target_period_updates": 0},
    "dyna_q": {**OFF_POLICY, "model_hidden": (8,)},
    "double_q slow": {**OFF_POLICY, "target_period_updates": 5},
    "a2c": {**ON_POLICY, "shared": True},
    "a2c apart": {**ON_POLICY, "shared": False},
    "ppo": {**ON_POLICY, "minibatches": 2},
    "pqn": {**ON_POLICY, "minibatches": 2},
    "impala": ON_POLICY,
}


class Watched(nn.Module):
    """Remembers in which mode it was asked, and whether for a gradient."""

    asked: ClassVar[set[tuple[bool, bool]]] = set()

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)

    def forward(self, seen: Tensor) -> Tensor:
        self.asked.add((self.training, torch.is_grad_enabled()))
        return torch.relu(self.layer(seen))


class Normed(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(shape[0], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5)
        )

    def forward(self, seen: Tensor) -> Tensor:
        features: Tensor = self.layers(seen)
        return features


def train(case: str, out: Path, **options: Any) -> mh.Run:
    algorithm = case.split()[0]
    given = {**SMALL, algorithm: CASES[case], **options}
    return mh.train("toy/identity", algorithm=algorithm, out=out, **given)


def test_every_algorithm_is_a_case() -> None:
    assert {case.split()[0] for case in CASES} == set(registry.names("algorithms")) - {"tabular"}


@pytest.mark.parametrize("case", CASES)
def test_only_gradients_are_taken_in_training_mode(case: str, tmp_path: Path) -> None:
    Watched.asked.clear()
    run = train(case, tmp_path / "run", steps=60, network=Watched)
    assert run.worker.learner.updates > 0
    run.evaluate(episodes=1)
    mh.load(run.path, network=Watched).act(np.zeros(4, np.float32))
    assert Watched.asked == {(True, True), (False, False)}


@pytest.mark.parametrize("case", ["dqn double", "ppo", "impala"])
def test_batch_norm_learns_its_statistics_from_one_environment(case: str, tmp_path: Path) -> None:
    run = train(case, tmp_path / "run", steps=100, network=Normed)
    norm: Any
    (norm,) = [m for m in run.workers.algorithm.modules.values() for m in m.modules()
               if isinstance(m, nn.BatchNorm1d)]  # fmt: skip
    assert int(norm.num_batches_tracked) == run.worker.learner.updates > 0
    before = norm.running_mean.clone()
    assert before.abs().sum() > 0
    played = run.evaluate(episodes=5), run.evaluate(episodes=5)
    assert played[0] == played[1]
    assert torch.equal(norm.running_mean, before)


def test_a_resumed_run_drops_what_it_would_have_dropped(tmp_path: Path) -> None:
    whole = train("dqn", tmp_path / "whole", steps=200, network=Normed)
    train("dqn", tmp_path / "half", steps=100, network=Normed)
    half = mh.resume(tmp_path / "half", steps=200, network=Normed, quiet=True)
    theirs = half.worker.model.named()
    for name, array in whole.worker.model.named().items():
        assert np.array_equal(array, theirs[name]), name


def test_networks_of_ours_are_never_switched() -> None:
    for shape in ((4,), (4, 84, 84), (4, 8, 8)):
        for norm in ("none", "layer"):
            torso = torsos.make(Config(norm=norm), shape, scale=1.0)
            features = heads.features_of(torso, shape, torch.float32)
            assert mode_dependent(heads.DuelingNetwork(torso, features, 2)) == []
            assert mode_dependent(heads.ActorCritic(torso, features, 2)) == []


def test_what_may_care_is_found() -> None:
    drop, own = nn.Dropout(), Watched((3,))
    hooked = nn.utils.spectral_norm(nn.Linear(3, 3))
    network = heads.QNetwork(nn.Sequential(nn.Linear(3, 3), drop, own, hooked), 8, 2)
    assert mode_dependent(network) == [drop, own, hooked]


def test_a_mode_is_left_as_it_was_found() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Dropout()).eval()
    learning, judging = Mode(network, training=True), Mode(network, training=False)
    with learning:
        assert network[1].training
        with judging:
            assert not network[1].training
        assert network[1].training
    assert not network[1].training
    with judging:
        pass
    assert not network[1].training
