"""The actor: environment + policy -> memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from manyhands.metrics import Laps, Scores
from manyhands.types import Algorithm, Array, Break, Environment, Rows, State, Step


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
        laps: Laps,
        reward_clip: float = 0.0,
        reward_scale: float = 1.0,
        ladder: Array | None = None,
        judged: Array | None = None,
    ) -> None:
        """`ladder`: the power each lane's exploration is taken to, 1 for all without it.
        `judged`: the lanes whose episodes count for the mean of the last hundred; all without it.
        """
        self.env, self.algorithm, self.memory = env, algorithm, memory
        self.rng, self.laps = rng, laps
        self.reward_clip, self.reward_scale = reward_clip, reward_scale
        self.agent_steps = 0
        self.elsewhere = 0  # agent steps of other workers: schedules count them all
        self.scores = Scores(env.spec.lanes, judged)
        self._ladder = np.ones(env.spec.lanes) if ladder is None else ladder
        self._explored = np.nan, np.zeros(0)  # how much was asked for last, and what each lane does
        self.breaks: list[Break] = []  # since someone looked
        self._first = np.ones(env.spec.lanes, bool)
        self._observation = env.reset()

    def step(self) -> None:
        """One decision in every environment, recorded."""
        lanes, stacked = self.env.spec.lanes, self.env.spec.stack > 1
        observation = self._observation
        action, columns = self.algorithm.act(observation, self._exploration(), self.rng)
        self.laps.lap("act")
        step = self.env.step(action)
        self.laps.lap("env")
        self.agent_steps += lanes
        broken = self._broken(step) if step.broken else None
        self.memory.extend(
            Rows(
                frame=observation[:, -1] if stacked else observation,
                action=action,
                reward=self._to_learn(step.reward),
                discount=step.discount,
                first=self._first,
                ended=step.ended,
                last_frame=step.last[:, -1] if stacked else step.last,
                next_frame=step.observation[:, -1] if stacked else step.observation,
                columns=columns,
                broken=broken,
            )
        )
        self.scores.add(step.reward, step.ended, self.total_steps)
        self._first, self._observation = step.ended, step.observation
        if broken is not None:
            self._first = step.ended | broken
            self.scores.abandon(broken)
        self.laps.lap("other")

    def _exploration(self) -> Array:
        asked = self.algorithm.exploration(self.total_steps)
        if asked != self._explored[0]:
            self._explored = asked, (asked**self._ladder).astype(np.float32)
            self._explored[1].setflags(write=False)  # it is given out again at the next step
        return self._explored[1]

    def _broken(self, step: Step) -> Array:
        """The lanes whose step is lost. In one that ended before it broke nothing is."""
        self.breaks += step.broken
        broken = np.zeros(self.env.spec.lanes, bool)
        for found in step.broken:
            broken[list(found.lanes)] = True
        return broken & ~step.ended

    def take_breaks(self) -> list[Break]:
        breaks, self.breaks = self.breaks, []
        return breaks

    @property
    def total_steps(self) -> int:
        return self.agent_steps + self.elsewhere

    def _to_learn(self, reward: Array) -> Array:
        if self.reward_clip:
            reward = np.clip(reward, -self.reward_clip, self.reward_clip)
        return reward if self.reward_scale == 1 else reward * np.float32(self.reward_scale)

    def state(self, *, fresh_episodes: bool = False) -> State:
        """With fresh episodes the running ones are given up: one of them broke its environment."""
        return {
            "agent_steps": self.agent_steps,
            "first": self._first.copy(),
            "rng": self.rng.bit_generator.state,
            "episodes": self.scores.state(),
            "env": None if fresh_episodes else self.env.state(),
        }

    def restore(self, state: State) -> None:
        self.agent_steps = int(state["agent_steps"])
        self._first = np.array(state["first"])
        self.rng.bit_generator.state = state["rng"]
        self.scores.restore(state["episodes"])
        if state["env"] is None:
            self._first[:] = True
            self.scores.abandon()
        else:
            self._observation = self.env.restore(state["env"])
