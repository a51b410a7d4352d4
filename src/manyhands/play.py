"""A trained agent on a stage of its own, where one can look on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from manyhands import envs
from manyhands.evaluate import OWN_STREAM, Policy
from manyhands.types import Array, EnvSpec

PICTURES_PER_S = 10.0  # where the environment does not say


class Moment(NamedTuple):
    """The stage after a step; at first, before one."""

    shown: Any  # a picture, a text, or None, as the render mode has it
    score: float  # of the episode so far, this step's reward included
    over: bool  # the episode ended here, or was cut


class Stage:
    """One lane of the environment that the agent was trained in, as evaluation plays it.

    The agent acts on that environment's observations; pictures are only ever looked at.
    """

    def __init__(self, policy: Policy, *, seed: int, epsilon: float, render_mode: str | None):
        self._algorithm, self._epsilon = policy.algorithm, np.full(1, epsilon, np.float32)
        played, drawn = np.random.SeedSequence((OWN_STREAM, seed)).spawn(2)
        self._rng = np.random.default_rng(drawn)
        self._render_mode = render_mode
        self.env: Any = envs.make(
            policy.plan["env"],
            lanes=1,
            seed=played,
            threads=1,
            training=False,
            render_mode=render_mode,
        )
        self.pictures_per_s = float(getattr(self.env, "pictures_per_s", PICTURES_PER_S))

    def moments(self, *, episodes: int, longest: int) -> Iterator[Moment]:
        """Episodes one after the other, none of more steps than ``longest``."""
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
    """The newest frame itself, where it is one: what is seen is then what the policy sees."""
    frame = observation[-1] if spec.stack > 1 else observation
    if frame.ndim == 3 and len(frame) in (1, 3):
        frame = frame.transpose(1, 2, 0)
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.ndim != 3 or frame.dtype != np.uint8:
        return None
    return np.ascontiguousarray(np.broadcast_to(frame, (*frame.shape[:2], 3)))
