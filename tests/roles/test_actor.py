"""What an actor hands to the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from manyhands import envs
from manyhands.algorithms import dqn
from manyhands.memory import Config
from manyhands.memory.replay import make as make_replay
from manyhands.memory.storage.lanes import CLOSING
from manyhands.networks import torsos
from manyhands.networks.config import Config as Network
from manyhands.roles.actor import Actor
from manyhands.roles.stopwatch import Stopwatch


def test_closing_rows_hold_the_value_of_the_last_observation() -> None:
    """They are bootstrapped from where an episode was truncated."""
    torch.manual_seed(0)
    seed = np.random.SeedSequence(1)
    env = envs.make(envs.Config(id="toy/frames"), lanes=4, seed=seed, threads=1)
    shape = env.spec.observation_shape
    algorithm: Any = dqn.DQN(
        dqn.Config(remember_values=True, warmup_steps=0, epsilon_decay_steps=0),
        spec=env.spec,
        torso=lambda: torsos.make(Network(), shape, scale=1.0),
    )
    rng = np.random.default_rng(2)
    columns = algorithm.remembers
    memory = make_replay(env.spec, Config(capacity=1000), columns=columns, rng=rng)
    actor = Actor(env, algorithm, memory, rng=np.random.default_rng(3), stopwatch=Stopwatch())
    for _ in range(200):
        actor.step()
    flat = memory.lanes.flat
    closing = np.flatnonzero(flat["action"] == CLOSING)
    before = closing - 1
    assert np.count_nonzero(flat["discount"][before] > 0) > 3  # truncated
    seen = np.zeros((len(closing), *shape), flat["frame"].dtype)
    memory.lanes.observations(closing, seen)
    with torch.no_grad():
        best = algorithm.online(torch.from_numpy(seen)).amax(1).numpy()
    np.testing.assert_allclose(flat["q_best"][closing], best, rtol=1e-4, atol=1e-5)
