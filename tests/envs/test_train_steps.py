"""Training episodes may be cut off; evaluations are whole."""

from __future__ import annotations

import numpy as np
import pytest

from manyhands import envs
from manyhands.types import BadRequest


def ends(steps: int, *, training: bool) -> list[int]:
    """After which steps episodes of MountainCar end; the task's limit is 200."""
    config = envs.Config(id="MountainCar-v0", train_steps=50)
    seed = np.random.SeedSequence(1)
    env = envs.make(config, lanes=1, seed=seed, threads=1, training=training)
    env.reset()
    found = []
    for step in range(1, steps + 1):
        made = env.step(np.zeros(1, np.int64))
        if made.ended[0]:
            assert made.discount[0] == 1  # cut off: what follows still counts
            found.append(step)
    env.close()
    return found


def test_training_episodes_are_cut_off_and_evaluations_are_not() -> None:
    assert ends(210, training=True) == [50, 100, 150, 200]
    assert ends(210, training=False) == [200]


def test_environments_of_other_kinds_refuse() -> None:
    with pytest.raises(BadRequest, match="train-steps"):
        envs.check(envs.Config(id="manyhands/Snake-v0", train_steps=50))
    with pytest.raises(BadRequest, match="train-steps"):
        envs.check(envs.Config(id="", train_steps=50), own=True)
