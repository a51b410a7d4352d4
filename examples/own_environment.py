"""Train on an environment of your own.

python examples/own_environment.py [STEPS]
"""

import sys
from typing import Any

import gymnasium as gym
import numpy as np

import manyhands as mh


class Corridor(gym.Env[Any, Any]):
    """Walk to the right end. Actions: 0 left, 1 right."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)  # draw from self.np_random only
        self.place = int(self.np_random.integers(3))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = max(0, self.place + (1 if action == 1 else -1))
        there = self.place == 4  # terminated: the task is over; truncated: only the time is up
        return self._seen(), float(there), there, False, {}

    def _seen(self) -> Any:
        return np.array([self.place / 4], np.float32)


def make_env() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Corridor(), 20)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
run = mh.train(make_env, steps=steps)
print("greedy score:", run.evaluate(episodes=20).mean)
