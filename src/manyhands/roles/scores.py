"""Scores: the running episode of every lane, and the last hundred episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from manyhands.types import Array, State, restored

# By lane: the environment's own numbers of the episode.
Told = Iterable[tuple[int, Mapping[str, float]]]


class Episode(NamedTuple):
    score: float  # sum of raw rewards
    length: int  # agent steps
    agent_steps: int  # of the run when the episode ended
    judged: bool = True  # False: its lane explores more than others
    told: Mapping[str, float] = MappingProxyType({})  # the environment's own numbers


class Scores:
    """The raw score and the length of every lane's running episode, and the last hundred."""

    def __init__(self, lanes: int, judged: Array | None = None) -> None:
        """`judged`: the lanes with episodes among the last hundred; all by default."""
        self._judged = np.ones(lanes, bool) if judged is None else judged
        self._score = np.zeros(lanes, np.float64)
        self._length = np.zeros(lanes, np.int64)
        self._recent: deque[Episode] = deque(maxlen=100)
        self.count = 0
        self.fresh: list[Episode] = []  # ended since `take_fresh`

    def add(self, reward: Array, ended: Array, agent_steps: int, told: Told = ()) -> None:
        self._score += reward
        self._length += 1
        if np.count_nonzero(ended):
            self._close(ended, agent_steps, dict(told))

    def _close(
        self, ended: Array, agent_steps: int, told: Mapping[int, Mapping[str, float]]
    ) -> None:
        for lane in np.flatnonzero(ended):  # rare: episodes, not steps
            score, length = float(self._score[lane]), int(self._length[lane])
            judged, own = bool(self._judged[lane]), told.get(int(lane), {})
            self.ended(Episode(score, length, agent_steps, judged, own))
        self._score[ended] = 0
        self._length[ended] = 0

    def ended(self, episode: Episode) -> None:
        if episode.judged:
            self._recent.append(episode)
        self.fresh.append(episode)
        self.count += 1

    def abandon(self, lanes: Array | slice = slice(None)) -> None:
        """Forgets the running episodes of these lanes."""
        self._score[lanes] = 0
        self._length[lanes] = 0

    def take_fresh(self) -> list[Episode]:
        fresh, self.fresh = self.fresh, []
        return fresh

    @property
    def return_mean_100(self) -> float | None:
        """None before the first episode has ended."""
        return float(np.mean([e.score for e in self._recent])) if self._recent else None

    @property
    def recent(self) -> int:
        """How many episodes the mean is of."""
        return len(self._recent)

    @property
    def full(self) -> bool:
        """Whether a hundred episodes have ended."""
        return len(self._recent) == self._recent.maxlen

    def state(self) -> State:
        recent = [list(episode[:3]) for episode in self._recent]
        return {
            "score": self._score.copy(),
            "length": self._length.copy(),
            "recent": recent,
            "count": self.count,
        }

    def restore(self, state: State) -> None:
        self._score[:] = restored.array(state, "score", self._score)
        self._length[:] = restored.between(state, "length", self._length, 0, restored.MOST)
        episodes = [dict(zip(("score", "length", "at"), e, strict=True)) for e in state["recent"]]
        self._recent.clear()
        for one in episodes:
            score, length = restored.number(one, "score"), restored.count(one, "length")
            self._recent.append(Episode(score, length, restored.count(one, "at")))
        self.count = restored.count(state, "count")
