"""A toy world and a slow, obvious record of it, which the memory is compared with.

The world pads its own stacks and the record keeps every whole observation in Python lists, so the
two share no index arithmetic with the code under test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from manyhands.types import EnvSpec, Rows

COLUMNS = {"value": "float32", "logits": "(2,)float32"}


@dataclass
class Episode:
    """What one lane saw from a reset on; the last observation has no action when `status` is
    closed, and an action whose outcome nobody knows when it is dead."""

    status: str = "running"  # closed, dead
    observations: list = field(default_factory=list)
    actions: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    discounts: list = field(default_factory=list)

    def transition(self, t: int, n: int, gamma: float) -> tuple[float, float, Any] | None:
        """(reward, discount, next observation), or None where no transition can be drawn."""
        reward, discount, at = 0.0, 1.0, t
        for _ in range(n):
            if at + 1 == len(self.observations):
                if self.status == "running":
                    return None
                break
            reward += discount * self.rewards[at]
            discount *= gamma * self.discounts[at]
            at += 1
            if discount == 0:
                break
        return None if at == t else (reward, discount, self.observations[at])


class Lane:
    def __init__(self, stack: int, number: int) -> None:
        self.stack, self.clock = stack, 1000 * number
        self.rows: list[tuple[Episode, int]] = []  # by sequence number: the memory's only duty
        self.reset()

    def see(self) -> None:
        self.clock += 1  # every frame is another one, and none is zero
        self.seen.append(np.full(2, self.clock, np.float32))

    def reset(self) -> None:
        self.episode, self.first = Episode(), True
        self.seen = deque([np.zeros(2, np.float32)] * self.stack, self.stack)
        self.see()

    def note(self) -> None:
        self.rows.append((self.episode, len(self.episode.observations)))
        self.episode.observations.append(np.stack(self.seen))

    def step(self, event: str) -> dict:
        """Acts once; `event` says what becomes of it. "die": the writer died before this step."""
        if event == "die":
            self.episode.status = "dead"
            self.reset()
        self.note()
        lost = event in ("life", "terminate")
        out = {
            "frame": self.seen[-1],
            "action": self.clock % 5,
            "reward": float(self.clock % 7 - 3),
            "discount": 0.0 if lost else 1.0,
            "first": self.first,
            "ended": event in ("terminate", "truncate"),
        }
        for name in ("action", "reward", "discount"):
            getattr(self.episode, name + "s").append(out[name])
        self.first = False
        self.see()
        if out["ended"]:
            self.note()
            self.episode.status = "closed"
            out["last"] = self.seen[-1]
            self.reset()
        return out


class World:
    def __init__(self, lanes: int, stack: int) -> None:
        self.spec = EnvSpec("toy", lanes, (2,), "float32", stack, 5)
        self.lanes = [Lane(stack, number) for number in range(lanes)]

    def step(self, events: Iterable[str]) -> Rows:
        outs = [lane.step(event) for lane, event in zip(self.lanes, events, strict=True)]
        last = [out["last"] for out in outs if out["ended"]]
        frame = np.stack([out["frame"] for out in outs])
        return Rows(
            frame=frame,
            action=np.array([out["action"] for out in outs], np.int32),
            reward=np.array([out["reward"] for out in outs], np.float32),
            discount=np.array([out["discount"] for out in outs], np.float32),
            first=np.array([out["first"] for out in outs]),
            ended=np.array([out["ended"] for out in outs]),
            last_frame=np.stack(last) if last else np.zeros((0, 2), np.float32),
            next_frame=np.stack([lane.seen[-1] for lane in self.lanes]),
            columns={"value": frame[:, 0] / 2, "logits": -frame},
        )

    def expected(self, rows: int, n: int, gamma: float, margin: int = 0) -> dict:
        """Every transition a memory of so many rows a lane may draw, by (lane, sequence)."""
        found = {}
        for number, lane in enumerate(self.lanes):
            gone = len(lane.rows) - rows + margin
            oldest = gone + self.spec.stack - 1 if gone > 0 else 0
            for sequence in range(oldest, len(lane.rows)):
                episode, t = lane.rows[sequence]
                if (transition := episode.transition(t, n, gamma)) is not None:
                    now = episode.observations[t]
                    found[number, sequence] = (now, episode.actions[t], *transition)
        return found
