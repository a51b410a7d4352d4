"""Plays a trained agent step by step, with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from manyhands import envs
from manyhands.runs.evaluate import OWN_STREAM
from manyhands.runs.policies import Policy
from manyhands.types import Array, EnvSpec


class Moment(NamedTuple):
    """What there is to see after a step, and once before the first one."""

    shown: Any  # a picture, a text or None, depending on the render mode
    score: float  # return of the episode so far, with this step's reward
    over: bool  # the episode ended here, or was cut off


class Stage:
    """One environment as in evaluation. The agent acts on its observations, not on the pictures."""

    def __init__(self, policy: Policy, *, seed: int, epsilon: float, render_mode: str | None):
        self._algorithm, self._epsilon = policy.algorithm, np.full(1, epsilon, np.float32)
        env_seed, action_seed = np.random.SeedSequence((OWN_STREAM, seed)).spawn(2)
        self._rng = np.random.default_rng(action_seed)
        self._render_mode = render_mode
        self.env = envs.make(
            policy.plan.env,
            lanes=1,
            seed=env_seed,
            threads=1,
            training=False,
            render_mode=render_mode,
        )
        self.pictures_per_s = self.env.pictures_per_s

    def moments(self, *, episodes: int, longest: int) -> Iterator[Moment]:
        """Plays episodes one after the other, each for ``longest`` steps at most."""
        observation = self.env.reset()
        yield Moment(self._look(observation), 0.0, False)
        for _ in range(episodes):
            score = 0.0
            for taken in range(1, longest + 1):
                actions, _ = self._algorithm.act(observation, self._epsilon, self._rng)
                step = self.env.step(actions)
                observation, ended = step.observation, bool(step.ended[0])
                score += float(step.reward[0])
                seen = self._look(step.last if ended else observation)
                yield Moment(seen, score, ended or taken == longest)
                if ended:
                    break
            else:
                observation = self.env.reset()

    def _look(self, observation: Array) -> Any:
        if self._render_mode is None:
            return as_picture(observation[0], self.env.spec)
        return self.env.render_lane(0)

    def close(self) -> None:
        self.env.close()


def as_picture(observation: Array, spec: EnvSpec) -> Array | None:
    """The newest frame that the policy sees, if it is an image."""
    frame = observation[-1] if spec.stack > 1 else observation
    if frame.ndim == 3 and len(frame) in (1, 3):
        frame = frame.transpose(1, 2, 0)
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.ndim != 3 or frame.dtype != np.uint8:
        return None
    return np.ascontiguousarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))
