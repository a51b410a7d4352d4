"""Many CartPole-v1 in one step of NumPy, with gymnasium's numbers to the last bit.

Gymnasium's own environments begin and replay the episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from manyhands.envs import Wanted
from manyhands.envs.gym import Gym
from manyhands.types import Array, Step

ID = "CartPole-v1"
FEWEST = 4  # lanes; fewer are faster one by one


def serves(wanted: Wanted) -> bool:
    config = wanted.config
    plain = not (config.kwargs or config.obs_key or wanted.render_mode or wanted.factory)
    return plain and config.id == ID and wanted.lanes >= FEWEST


class Carts(Gym):
    def __init__(self, *, lanes: int, seed: np.random.SeedSequence, episode_steps: int = 0) -> None:
        super().__init__(ID, lanes=lanes, seed=seed)
        self._cart: Any = self._envs[0].unwrapped  # has the constants
        own_limit: int = self._envs[0].spec.max_episode_steps
        self._most_steps = min(own_limit, episode_steps or own_limit)
        self._states = np.zeros((4, lanes))
        self._steps = np.zeros(lanes, np.int64)  # of the running episodes

    def step(self, actions: Array) -> Step:
        self._episodes.record(actions)
        self._states = self._after(actions == 1)
        self._steps += 1
        observation = self._states.T.astype(np.float32, order="C")
        x, _, angle, _ = np.abs(self._states)
        fell = (x > self._cart.x_threshold) | (angle > self._cart.theta_threshold_radians)
        ended = fell | (self._steps >= self._most_steps)
        discount, last = (~fell).astype(np.float32), self._no_last
        if np.count_nonzero(ended):
            last = observation[ended]  # a copy
            self._begin(np.flatnonzero(ended), observation)
        self._seen = observation
        return Step(observation, np.ones(len(actions), np.float32), discount, ended, last)

    def _after(self, right: Array) -> Array:
        """The equations as gymnasium writes them: another order rounds in another way."""
        cart = self._cart
        _, speed, angle, turning = self._states
        force = np.where(right, cart.force_mag, -cart.force_mag)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + cart.polemass_length * np.square(turning) * sine) / cart.total_mass
        inertia = cart.length * (4.0 / 3.0 - cart.masspole * np.square(cosine) / cart.total_mass)
        turn = (cart.gravity * sine - cosine * push) / inertia
        pull = push - cart.polemass_length * turn * cosine / cart.total_mass
        rates = np.array([speed, pull, turning, turn])
        after: Array = self._states + cart.tau * rates
        return after

    def _open(self, lane: int, seed: int, observation: Array) -> None:
        super()._open(lane, seed, observation)
        self._take(lane)

    def _replay(self, lane: int, actions: Any) -> Any:
        seen = super()._replay(lane, actions)
        self._take(lane)
        return seen

    def _take(self, lane: int) -> None:
        """Continues where gymnasium's environment is."""
        self._states[:, lane] = self._envs[lane].unwrapped.state
        self._steps[lane] = len(self._episodes.actions[lane])
