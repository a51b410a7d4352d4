from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyhands import optim
from manyhands.algorithms import dqn
from manyhands.backends.inprocess import InProcess
from manyhands.roles.counters import FIELDS, UPDATES, Row
from manyhands.roles.learner import NONFINITE_IN_A_ROW, Learner
from manyhands.roles.stopwatch import Stopwatch
from manyhands.strategies.serial import Config, Serial
from manyhands.types import Batch, EnvSpec, Failure, Parameters, Rank, State

SPEC = EnvSpec("test", lanes=1, frame_shape=(3,), frame_dtype="float32", stack=1, actions=2)


class Given:
    """A memory in which these batches are due, once."""

    torn_rows = capacity = filled = 0

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.reported: list[torch.Tensor] = []

    def extend(self, rows: Any) -> None: ...

    def due(self, demand: Any, targets: Any) -> Iterator[Batch]:  # noqa: ARG002
        while self.batches:
            yield targets(self.batches.pop(0))

    def report(self, batch: Batch, priorities: torch.Tensor) -> None:  # noqa: ARG002
        self.reported.append(priorities)

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...


def a_batch(weight: list[float] | None = None, reward: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return Batch(
        observation=torch.randn(4, 3, generator=generator),
        action=torch.tensor([0, 1, 0, 1]),
        reward=torch.tensor([reward, 2.0, -1.0, 0.5]),
        discount=torch.zeros(4),
        next_observation=torch.randn(4, 3, generator=generator),
        weight=torch.tensor(weight or [1.0] * 4),
        rows=np.arange(4),
    )


def alone(model: optim.FlatModel) -> Serial:
    """A strategy for one, of plain gradient descent."""
    sgd = optim.Config(name="sgd")
    shared = Serial(
        Config(), backend=InProcess(), vector=model.vector, parts=model.parts, optimizer=sgd
    )
    return shared.join(model, 0)


def a_learner(memory: Given, **options: Any) -> Learner:
    torch.manual_seed(0)
    algorithm: Any = dqn.DQN(dqn.Config(lr=0.1), spec=SPEC, torso=lambda: nn.Linear(3, 5))
    model = optim.FlatModel(algorithm.modules)
    serial = alone(model)
    options = {"clip_norm": 0.0, **options}
    return Learner(algorithm, memory, serial, model, stopwatch=Stopwatch(), **options)


def test_a_gradient_is_counted_before_it_is_pushed() -> None:
    """So updates never exceed gradients, whichever process is killed in a push."""

    class Deadly(Parameters):
        def pull(self, model: Any) -> int:  # noqa: ARG002
            return 0

        def push(self, gradient: Any, **how: Any) -> None:  # noqa: ARG002
            raise SystemExit("killed")

    backend = InProcess()
    counted, channel = backend.table(1, len(FIELDS), np.dtype(np.float64)), backend.channel(1)
    learner = a_learner(Given(a_batch()))
    learner.parameters = Deadly()
    Row(counted, channel, Rank(0, 0)).count_gradients(learner)
    with pytest.raises(SystemExit, match="killed"):
        learner.step(0)
    assert counted.rows()[0, UPDATES] == 1


def gradient_of(batch: Batch) -> torch.Tensor:
    learner = a_learner(Given(batch))
    learner.step(0)
    return learner.model.gradient.clone()


def test_changing_the_weights_changes_the_gradient_as_it_should() -> None:
    alone = [gradient_of(a_batch([float(i == j) for j in range(4)])) for i in range(4)]
    mixed = gradient_of(a_batch([0.5, 2.0, 0.0, 1.0]))
    torch.testing.assert_close(mixed, 0.5 * alone[0] + 2 * alone[1] + alone[3])
    assert not torch.allclose(mixed, gradient_of(a_batch()))


def test_a_step_pulls_learns_pushes_and_reports() -> None:
    memory = Given(a_batch(), a_batch())
    learner = a_learner(memory)
    before = learner.model.vector.clone()
    learner.step(0)
    assert learner.updates == 2
    assert learner.parameters.pull(learner.model) == 2
    assert len(memory.reported) == 2
    assert not torch.equal(before, learner.model.vector)
    learner.step(0)  # nothing is due
    assert learner.updates == 2


def test_the_gradient_is_clipped_before_the_push() -> None:
    free, clipped = a_learner(Given(a_batch())), a_learner(Given(a_batch()), clip_norm=1e-3)
    start = free.model.vector.clone()
    free.step(0)
    clipped.step(0)
    assert (clipped.model.vector - start).norm() == pytest.approx(0.1 * 1e-3, rel=1e-3)
    assert (free.model.vector - start).norm() > 0.1 * 1e-2


def test_a_nonfinite_gradient_is_counted_and_never_applied() -> None:
    kept: list[Batch] = []
    memory = Given(a_batch(reward=float("nan")), a_batch(), a_batch(reward=float("inf")))
    learner = a_learner(memory, on_nonfinite=kept.append)
    learner.step(0)
    # The Huber loss of an infinite error has a finite gradient, but the batch is not a good one:
    assert learner.nonfinite_skipped >= 1
    assert torch.isfinite(learner.model.vector).all()
    assert len(kept) == 1
    assert torch.isnan(kept[0].reward[0])


def test_ten_in_a_row_stop_the_run_with_good_weights() -> None:
    bad = [a_batch(reward=float("nan")) for _ in range(NONFINITE_IN_A_ROW)]
    learner = a_learner(Given(a_batch(), *bad[1:], a_batch(), *bad))
    with pytest.raises(Failure, match="not finite 10 times in a row"):
        learner.step(0)
    assert learner.updates == 2
    assert torch.isfinite(learner.model.vector).all()


def test_diagnostics_are_numbers() -> None:
    learner = a_learner(Given(a_batch()))
    assert learner.diagnostics() == {}
    learner.step(0)
    found = learner.diagnostics()
    assert {"losses/td_loss", "losses/q_values", "losses/gradient_norm"} <= set(found)
    assert all(isinstance(value, float) for value in found.values())
