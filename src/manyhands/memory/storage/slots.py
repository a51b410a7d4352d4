"""Slots: one rollout in shared memory, and how it becomes tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands import types
from manyhands.memory import bootstraps
from manyhands.types import Array


class Slot(NamedTuple):
    """One rollout of n lanes. Step t saw the `stack` frames from place t on."""

    frame: Array  # [steps + stack, n, *frame]; the last one is acted on next
    first: Array  # [steps + stack, n] bool; this frame began an episode
    action: Array  # [steps, n], like the next three
    reward: Array
    discount: Array
    ended: Array
    last: Array  # [steps, n, *frame] the true last frame of an episode that was truncated
    columns: Mapping[str, Array]


def rollout_of(slot: Slot, stack: int, gamma: float) -> types.Rollout:
    """A copy of the slot, without its observations."""
    step, lane, after = what_followed(slot, stack)
    return types.Rollout(
        action=torch.from_numpy(slot.action.astype(np.int64)),
        reward=torch.from_numpy(slot.reward.copy()),
        discount=torch.from_numpy(slot.discount * np.float32(gamma)),
        ended=torch.from_numpy(slot.ended.copy()),
        after=torch.from_numpy(after),
        after_at=torch.from_numpy(step * slot.action.shape[1] + lane),
        columns={name: torch.from_numpy(column.copy()) for name, column in slot.columns.items()},
    )


def side_by_side(rollouts: Sequence[types.Rollout]) -> types.Rollout:
    """Joins rollouts along their lanes."""
    if len(rollouts) == 1:
        return rollouts[0]
    lanes, many = rollouts[0].action.shape[1], len(rollouts)

    def beside(tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(tensors), 1)

    places = [
        (one.after_at // lanes * many + side) * lanes + one.after_at % lanes
        for side, one in enumerate(rollouts)
    ]
    return types.Rollout(
        action=beside(one.action for one in rollouts),
        reward=beside(one.reward for one in rollouts),
        discount=beside(one.discount for one in rollouts),
        ended=beside(one.ended for one in rollouts),
        after=torch.cat([one.after for one in rollouts]),
        after_at=torch.cat(places),
        columns={n: beside(one.columns[n] for one in rollouts) for n in rollouts[0].columns},
    )


def observations(slot: Slot, stack: int, out: Array) -> None:
    """Rebuilds the observation of every step. Frames before a `first` are zeros."""
    steps = len(slot.action)
    if stack == 1:
        out[:] = slot.frame[:steps]
        return
    for place in range(stack):
        out[:, :, place] = slot.frame[place : place + steps]
    first = np.stack([slot.first[place : place + steps] for place in range(1, stack)], 2)
    _blank(out, first)


def what_followed(slot: Slot, stack: int) -> tuple[Array, Array, Array]:
    """Steps, lanes and observations after the steps that bootstrap from outside the rollout."""
    step, lane = np.nonzero(bootstraps(slot.ended, slot.discount))
    place = step[:, None] + np.arange(1, stack + 1)
    out, first = slot.frame[place, lane[:, None]], slot.first[place[:, 1:], lane[:, None]]
    ended = np.flatnonzero(slot.ended[step, lane])  # the next frame there is another episode's
    out[ended, -1] = slot.last[step[ended], lane[ended]]
    if stack == 1:
        return step, lane, out[:, 0]
    first[ended, -1] = False
    _blank(out, first)
    return step, lane, out


def _blank(out: Array, first: Array) -> None:
    """out [..., stack, *frame], first [..., stack - 1]: whether each frame but the oldest began."""
    if first.any():  # a frame belongs to an earlier episode if any later one is `first`
        before = np.logical_or.accumulate(first[..., ::-1], axis=-1)[..., ::-1]
        out[np.nonzero(before)] = 0
