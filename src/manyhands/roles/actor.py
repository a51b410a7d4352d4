"""The actor: environment + policy -> memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from manyhands.roles.scores import Scores
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import (
    VALUES,
    Algorithm,
    Array,
    Break,
    Environment,
    Rows,
    State,
    Step,
    restored,
)


class Record(Protocol):
    """What an actor needs of a memory."""

    def extend(self, rows: Rows) -> None: ...


class Actor:
    def __init__(
        self,
        env: Environment,
        algorithm: Algorithm,
        memory: Record,
        *,
        rng: np.random.Generator,
        stopwatch: Stopwatch,
        reward_clip: float = 0.0,
        reward_scale: float = 1.0,
        ladder: Array | None = None,
        judged: Array | None = None,
    ) -> None:
        """`ladder`: the power of epsilon in each lane; 1 in all by default.
        `judged`: the lanes that count for the mean of the last hundred episodes; all by default.
        """
        self.env, self.algorithm, self.memory = env, algorithm, memory
        self.rng, self.stopwatch = rng, stopwatch
        self.reward_clip, self.reward_scale = reward_clip, reward_scale
        self.agent_steps = 0
        self._elsewhere = 0  # agent steps of other workers: schedules count them too
        self.scores = Scores(env.spec.lanes, judged)
        self._ladder = np.ones(env.spec.lanes) if ladder is None else ladder
        self._epsilons = np.nan, np.zeros(0)  # the last epsilon, and that of each lane
        self.breaks: list[Break] = []  # since `take_breaks`
        self._first = np.ones(env.spec.lanes, bool)
        self._observation = env.reset()

    def step(self, elsewhere: int = 0) -> None:
        """Acts once in every environment and records it. `elsewhere`: agent steps of others."""
        self._elsewhere = elsewhere
        lanes, stacked = self.env.spec.lanes, self.env.spec.stack > 1
        observation = self._observation
        action, columns = self.algorithm.act(observation, self._exploration(), self.rng)
        self.stopwatch.lap("act")
        step = self.env.step(action)
        self.stopwatch.lap("env")
        self.agent_steps += lanes
        broken = self._broken(step) if step.broken else None
        self.memory.extend(
            Rows(
                frame=observation[:, -1] if stacked else observation,
                action=action,
                reward=self._learned_reward(step.reward),
                discount=step.discount,
                first=self._first,
                ended=step.ended,
                last_frame=step.last[:, -1] if stacked else step.last,
                next_frame=step.observation[:, -1] if stacked else step.observation,
                columns=columns,
                broken=broken,
                last_columns=self._last_columns(step),
            )
        )
        self.scores.add(step.reward, step.ended, self.total_steps, step.told)
        self._first, self._observation = step.ended, step.observation
        if broken is not None:
            self._first = step.ended | broken
            self.scores.abandon(broken)
        self.stopwatch.lap("other")

    def _last_columns(self, step: Step) -> Mapping[str, Array] | None:
        """The values of the last observations, if rows carry values. No action
        follows them, but a truncated episode bootstraps from them.
        """
        if not len(step.last) or not set(self.algorithm.remembers) >= VALUES:
            return None
        greedy = np.zeros(len(step.last), np.float32)
        return self.algorithm.act(step.last, greedy, np.random.default_rng(0))[1]

    def _exploration(self) -> Array:
        epsilon = self.algorithm.exploration(self.total_steps)
        if epsilon != self._epsilons[0]:
            self._epsilons = epsilon, (epsilon**self._ladder).astype(np.float32)
            self._epsilons[1].setflags(write=False)  # returned again at the next step
        return self._epsilons[1]

    def _broken(self, step: Step) -> Array:
        """The lanes that lost a step. An episode that ended before it broke lost nothing."""
        self.breaks += step.broken
        broken = np.zeros(self.env.spec.lanes, bool)
        for one in step.broken:
            broken[list(one.lanes)] = True
        return broken & ~step.ended

    def take_breaks(self) -> list[Break]:
        breaks, self.breaks = self.breaks, []
        return breaks

    @property
    def total_steps(self) -> int:
        return self.agent_steps + self._elsewhere

    def _learned_reward(self, reward: Array) -> Array:
        if self.reward_clip:
            reward = np.clip(reward, -self.reward_clip, self.reward_clip)
        return reward if self.reward_scale == 1 else reward * np.float32(self.reward_scale)

    def state(self, *, fresh_episodes: bool = False) -> State:
        """`fresh_episodes`: gives up the running ones, as one of them broke its environment."""
        return {
            "agent_steps": self.agent_steps,
            "first": self._first.copy(),
            "rng": self.rng.bit_generator.state,
            "episodes": self.scores.state(),
            "env": None if fresh_episodes else self.env.state(),
        }

    def restore(self, state: State) -> None:
        self.agent_steps = restored.count(state, "agent_steps")
        self._first = restored.array(state, "first", self._first).copy()
        self.rng.bit_generator.state = state["rng"]
        self.scores.restore(state["episodes"])
        if state["env"] is None:
            self._first[:] = True
            self.scores.abandon()
        else:
            self._observation = self.env.restore(state["env"])
