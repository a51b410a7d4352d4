"""An environment that takes its time: a simulator elsewhere, a robot, a service.

Waiting uses no core, so two cores can show what many workers bring. All environments of a worker
wait together.
"""

from __future__ import annotations

import time
from typing import Any

from manyhands.types import Array, Environment, State, Step


class Waiting(Environment):
    def __init__(self, env: Environment, wait_s: float) -> None:
        self._env, self._wait_s = env, wait_s
        self.spec, self.pictures_per_s = env.spec, env.pictures_per_s

    def reset(self) -> Array:
        return self._env.reset()

    def step(self, actions: Array) -> Step:
        time.sleep(self._wait_s)
        return self._env.step(actions)

    def state(self) -> State:
        return self._env.state()

    def restore(self, state: State) -> Array:
        """Replays the running episodes without waiting."""
        return self._env.restore(state)

    def render_lane(self, lane: int) -> Any:
        return self._env.render_lane(lane)

    def close(self) -> None:
        self._env.close()
