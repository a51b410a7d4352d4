"""True simulators that can be put into a state: what would follow an action in any observation.

They are the upper bound of a learned model. A simulator knows no more than the observation says.
LunarLander's observation lacks the pose of the legs and the terrain beside the pad, so the legs
have their pose in flight and the ground is that of the simulator's own episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from manyhands.types import Array, BadRequest


class Outcome(NamedTuple):
    """What follows n actions."""

    observation: Array  # [n, d] float32
    reward: Array  # [n] float32, raw
    terminated: Array  # [n] bool


Simulator = Callable[[Array, Array], Outcome]


def of(id: str) -> Simulator:
    """The simulator of the environment with this id."""
    if id not in SIMULATORS:
        raise BadRequest(
            f"{id} has no simulator that can be put into a state",
            f"use a learned model, or one of {', '.join(SIMULATORS)}",
        )
    import gymnasium

    made: Simulator = SIMULATORS[id](gymnasium.make(id).unwrapped)
    return made


class CartPole:
    """Gymnasium's equations (Barto, Sutton and Anderson 1983), for many carts at once."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self, observation: Array, action: Array) -> Outcome:
        env = self._env
        x, speed, angle, turning = observation.astype(np.float64).T
        force = np.where(action == 1, env.force_mag, -env.force_mag)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + env.polemass_length * turning**2 * sine) / env.total_mass
        inertia = env.length * (4.0 / 3.0 - env.masspole * cosine**2 / env.total_mass)
        turn = (env.gravity * sine - cosine * push) / inertia
        pull = push - env.polemass_length * turn * cosine / env.total_mass
        after = [x + env.tau * speed, speed + env.tau * pull]
        after += [angle + env.tau * turning, turning + env.tau * turn]
        ended = np.abs(after[0]) > env.x_threshold
        ended |= np.abs(after[2]) > env.theta_threshold_radians
        seen = np.stack(after, 1).astype(np.float32)
        return Outcome(seen, np.ones(len(seen), np.float32), ended)


class LunarLander:
    """Gymnasium's lander, moved to each observation in turn: some ten thousand steps a second."""

    def __init__(self, env: Any) -> None:
        from gymnasium.envs.box2d import lunar_lander as units

        self._env = env
        self._half = units.VIEWPORT_W / units.SCALE / 2, units.VIEWPORT_H / units.SCALE / 2
        self._fps = units.FPS
        env.reset(seed=0)
        self._ground = env.helipad_y + units.LEG_DOWN / units.SCALE
        for _ in range(5):  # until the springs have opened the legs
            env.step(0)
        lander = env.lander
        self._poses = [
            (lander.GetLocalPoint(leg.position), leg.angle - lander.angle) for leg in env.legs
        ]

    def __call__(self, observation: Array, action: Array) -> Outcome:
        after, reward, ended = [], [], []
        for seen, chosen in zip(observation.tolist(), action.tolist(), strict=True):
            self._move(seen)
            then, gain, terminated, _, _ = self._env.step(chosen)
            after.append(then)
            reward.append(gain)
            ended.append(terminated)
        return Outcome(np.array(after, np.float32), np.array(reward, np.float32), np.array(ended))

    def _move(self, seen: list[float]) -> None:
        """Puts lander and legs where the observation says, with the speed that it says."""
        x, y, right, up, angle, turning, left_leg, right_leg = seen
        (width, height), fps, env = self._half, self._fps, self._env
        lander, spin = env.lander, turning * fps / 20.0
        lander.position, lander.angle = (width + x * width, self._ground + y * height), angle
        speed = right * fps / width, up * fps / height
        lander.linearVelocity, lander.angularVelocity = speed, spin
        for leg, (place, turned), down in zip(
            env.legs, self._poses, (left_leg, right_leg), strict=True
        ):
            leg.position, leg.angle = lander.GetWorldPoint(place), angle + turned
            leg.linearVelocity = lander.GetLinearVelocityFromWorldPoint(leg.position)
            leg.angularVelocity, leg.ground_contact = spin, down > 0.5
            leg.awake = True
        lander.awake, env.game_over = True, False
        far, fast = math.hypot(x, y), math.hypot(right, up)
        env.prev_shaping = -100 * (far + fast + abs(angle)) + 10 * (left_leg + right_leg)


SIMULATORS: dict[str, Callable[[Any], Simulator]] = {
    "CartPole-v1": CartPole,
    "LunarLander-v3": LunarLander,
}
