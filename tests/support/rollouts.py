"""Filling a memory of rollouts from the toy world, and learning from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manyhands.types import Batch
from support.reference_world import World

EVENTS = ["go", "go", "go", "life", "terminate", "truncate"]


def fill(world: World, memory: Any, steps: int, rng: np.random.Generator) -> list[list[dict]]:
    """Plays and notes of every step and lane what the world showed before and after it."""
    noted = []
    for _ in range(steps):
        before = [np.stack(lane.seen) for lane in world.lanes]
        rows = world.step(rng.choice(EVENTS, world.spec.lanes))
        memory.extend(rows)
        last = iter(rows.last_frame)
        noted.append(
            [
                {
                    "observation": before[i],
                    "action": int(rows.action[i]),
                    "reward": float(rows.reward[i]),
                    "discount": float(rows.discount[i]),
                    "ended": bool(rows.ended[i]),
                    "after": after_of(before[i], lane, rows.ended[i], last),
                }
                for i, lane in enumerate(world.lanes)
            ]
        )
    return noted


def after_of(before: np.ndarray, lane: Any, ended: bool, last: Iterator) -> np.ndarray:
    if ended:
        return np.concatenate([before[1:], next(last)[None]])
    return np.stack(lane.seen)


def learn(memory: Any, demand: Any) -> tuple[list[Any], list[Batch]]:
    """What `targets` saw, and the batches: copies, with a column that counts the steps."""
    seen: list[Any] = []

    def targets(rollout: Any) -> Any:
        seen.append(rollout)
        count = torch.arange(rollout.reward.numel()).view(rollout.reward.shape)
        return replace(rollout, columns={**rollout.columns, "count": count})

    batches = [
        replace(batch, observation=batch.observation.clone())
        for batch in memory.due(demand, targets)
    ]
    return seen, batches


def outside(noted: list[list[dict]]) -> set[tuple[int, int]]:
    """The steps that bootstrap from what is not in the rollout; one, if there is none."""
    last = len(noted) - 1
    found = {
        (t, lane)
        for t, lanes in enumerate(noted)
        for lane, step in enumerate(lanes)
        if (step["ended"] or t == last) and step["discount"] > 0
    }
    return found or {(last, 0)}
