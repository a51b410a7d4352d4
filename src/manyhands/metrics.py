"""Where the time goes, how the episodes went, and the files in which it is kept."""

from __future__ import annotations

import json
import math
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time
from typing import IO, Any, NamedTuple

import numpy as np

from manyhands.types import Array, Failure, State

PARTS_OF_TIME = ("env", "act", "sample", "gradient", "pull", "push", "idle", "other")


class Laps:
    """One role's time, cut into named parts that add up to all of it: every lap ends the last."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS_OF_TIME, 0.0)
        self.now_s = perf_counter()  # when the last lap ended

    def lap(self, part: str) -> None:
        now_s = perf_counter()
        self.seconds[part] += now_s - self.now_s
        self.now_s = now_s

    def begin(self) -> None:
        """Starts the clock anew: what came before is not counted."""
        self.now_s = perf_counter()


class Episode(NamedTuple):
    score: float  # sum of raw rewards
    length: int  # agent steps
    agent_steps: int  # of the run when it ended
    judged: bool = True  # False: of a lane that explores more than others do


class Scores:
    """Counts the raw score and the length of every lane's running episode, and the last hundred."""

    def __init__(self, lanes: int, judged: Array | None = None) -> None:
        """`judged`: the lanes whose episodes are among the last hundred; all without it."""
        self._judged = np.ones(lanes, bool) if judged is None else judged
        self._score = np.zeros(lanes, np.float64)
        self._length = np.zeros(lanes, np.int64)
        self._recent: deque[Episode] = deque(maxlen=100)
        self.count = 0
        self.fresh: list[Episode] = []  # ended since someone looked

    def add(self, reward: Array, ended: Array, agent_steps: int) -> None:
        self._score += reward
        self._length += 1
        if np.count_nonzero(ended):
            self._close(ended, agent_steps)

    def _close(self, ended: Array, agent_steps: int) -> None:
        for lane in np.flatnonzero(ended):  # episodes, not steps: rare
            score, length = float(self._score[lane]), int(self._length[lane])
            self.ended(Episode(score, length, agent_steps, bool(self._judged[lane])))
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
    def full(self) -> bool:
        """A hundred episodes are there to judge by."""
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
        self._score[:] = state["score"]
        self._length[:] = state["length"]
        self._recent.clear()
        self._recent.extend(Episode(float(s), int(n), int(t)) for s, n, t in state["recent"])
        self.count = state["count"]


class MetricsFile:
    """metrics.jsonl and TensorBoard events: every row has ``agent_steps`` and ``wall_s``.

    NaN and infinities are null: the rows are strict JSON.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._lines: IO[str] = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        # Not SummaryWriter: its thread would die of a full disk, unheard.
        self._events = EventsWriter(str(folder / "events"))

    def write(self, agent_steps: int, wall_s: float, values: dict[str, float]) -> None:
        row: dict[str, Any] = {"agent_steps": agent_steps, "wall_s": round(wall_s, 3)}
        row |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._lines.write(json.dumps(row, allow_nan=False) + "\n")
        self._events.write_event(_event(agent_steps, values))

    def flush(self) -> None:
        try:
            self._lines.flush()
            self._events.flush()
        except OSError as error:
            raise Failure(f"could not write metrics: {error.strerror}", "free some space") from None

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._lines.close()
        with suppress(OSError, ValueError):
            self._events.close()


def _event(agent_steps: int, values: dict[str, float]) -> Any:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    tags = [Summary.Value(tag=name, simple_value=value) for name, value in finite.items()]
    return Event(wall_time=time(), step=agent_steps, summary=Summary(value=tags))
