"""Rollout: the last steps of every lane, which are learned from together and then dropped.

The rows lie in lanes, like those of a replay, so stacks, episode ends and remembered columns use
the same code. When every lane has taken its steps, `targets` sees all of them once, in order. Then
each epoch shuffles them into minibatches. Frames stay bytes and are copied once per epoch, from
the lanes into the minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from manyhands import types
from manyhands.memory import Config, bootstraps, rollout_rows
from manyhands.memory.storage.lanes import Lanes
from manyhands.types import Array, Batch, EnvSpec, RolloutDemand, Rows, State, restored


class Rollout:
    torn_rows = 0  # no other process writes here

    def __init__(
        self,
        spec: EnvSpec,
        config: Config,  # noqa: ARG002  (the algorithm sets the size)
        *,
        demand: RolloutDemand,
        columns: Mapping[str, str],
        rng: np.random.Generator,
    ) -> None:
        self.demand = demand
        self.lanes = Lanes(spec, rollout_rows(spec, demand), columns=columns)
        self._rng = rng
        self._ids = np.zeros((demand.steps, spec.lanes), np.int64)  # the row of every step
        self._ended = np.zeros((demand.steps, spec.lanes), bool)
        self._broken = np.zeros((demand.steps, spec.lanes), bool)  # its environment broke
        self._taken = 0  # steps of this rollout so far
        self._ones = torch.ones(demand.steps * spec.lanes)
        self._none = torch.zeros(0)
        self._observations: dict[int, Array] = {}

    @property
    def capacity(self) -> int:
        return self._ids.size

    @property
    def filled(self) -> int:
        return self._taken * self._ids.shape[1]

    def extend(self, rows: Rows) -> None:
        self._ids[self._taken] = self.lanes.next_ids()
        ended = rows.ended if rows.broken is None else rows.ended | rows.broken
        self._ended[self._taken] = ended
        self._broken[self._taken] = False if rows.broken is None else rows.broken
        self.lanes.extend(rows)
        self.lanes.preview(rows.next_frame, ended)
        self._taken += 1

    def due(
        self, demand: RolloutDemand, targets: Callable[[types.Rollout], types.Rollout]
    ) -> Iterator[Batch]:
        if self._taken < demand.steps:
            return
        seen = targets(self._rollout(demand))
        columns = {name: column.flatten(0, 1) for name, column in seen.columns.items()}
        discount = seen.discount.flatten()
        for _ in range(demand.epochs):
            for part in self._deal(demand):
                yield self._batch(part, discount, columns)
        self._taken = 0

    def _deal(self, demand: RolloutDemand) -> list[Array]:
        """All steps in shuffled minibatches; in order if there is only one batch in all."""
        everything = np.arange(self._ids.size)
        if demand.epochs * demand.minibatches > 1:
            self._rng.shuffle(everything)
        return np.array_split(everything, demand.minibatches)

    def _rollout(self, demand: RolloutDemand) -> types.Rollout:
        flat, ids = self.lanes.flat, self._ids
        after_at, after_ids = self._after(ids, flat["discount"][ids])
        after = np.empty((len(after_ids), *self.lanes.spec.observation_shape), flat["frame"].dtype)
        self.lanes.observations(after_ids, after)
        return types.Rollout(
            action=torch.from_numpy(flat["action"][ids]).long(),
            reward=torch.from_numpy(flat["reward"][ids]),
            discount=torch.from_numpy(flat["discount"][ids] * np.float32(demand.gamma)),
            ended=torch.from_numpy(self._ended.copy()),
            after=torch.from_numpy(after),
            after_at=torch.from_numpy(after_at),
            columns={name: torch.from_numpy(flat[name][ids]) for name in self.lanes.columns},
        )

    def _after(self, ids: Array, discount: Array) -> tuple[Array, Array]:
        """The steps that bootstrap from a row not among `ids`, and those rows.

        A step that ended an episode is followed by its closing row. The last step of a lane is
        followed by the row to act on next. A broken step bootstraps from its own row, so that the
        steps before it lose nothing.
        """
        at = np.flatnonzero(bootstraps(self._ended, discount))
        rows = ids.reshape(-1)[at]
        return at, np.where(self._broken.reshape(-1)[at], rows, self.lanes.onward(rows))

    def _batch(self, part: Array, discount: Tensor, columns: Mapping[str, Tensor]) -> Batch:
        rows = self._ids.reshape(-1)[part]
        if len(rows) not in self._observations:
            shape = (len(rows), *self.lanes.spec.observation_shape)
            self._observations[len(rows)] = np.empty(shape, self.lanes.flat["frame"].dtype)
        observation = self._observations[len(rows)]
        self.lanes.observations(rows, observation)
        at = torch.from_numpy(part)
        return Batch(
            observation=torch.from_numpy(observation),
            action=torch.from_numpy(self.lanes.flat["action"][rows]).long(),
            reward=torch.from_numpy(self.lanes.flat["reward"][rows]),
            discount=discount[at],
            next_observation=self._none,
            weight=self._weight(part),
            rows=rows,
            columns={name: column[at] for name, column in columns.items()},
        )

    def _weight(self, part: Array) -> Tensor:
        """1 for every step, 0 for broken ones."""
        if not self._broken.any():
            return self._ones[: len(part)]
        return torch.from_numpy((~self._broken.reshape(-1)[part]).astype(np.float32))

    def report(self, batch: Batch, priorities: Tensor) -> None:
        """A rollout does not use priorities."""

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        steps = {"ids": self._ids, "ended": self._ended, "broken": self._broken}
        lanes = {**self.lanes.state(), **{name: array.copy() for name, array in steps.items()}}
        return {"lanes": lanes, "rng": self._rng.bit_generator.state, "taken": self._taken}

    def restore(self, state: State) -> None:
        """Without the lanes the current rollout is dropped and the next one begins."""
        lanes = state.get("lanes")
        if lanes is not None:
            self.lanes.restore(lanes)
            self._ids[:] = restored.between(lanes, "ids", self._ids, 0, self.lanes.capacity - 1)
            self._ended[:] = restored.array(lanes, "ended", self._ended)
            self._broken[:] = lanes.get("broken", False)
        else:
            self.lanes.clear()
        most = self.demand.steps
        self._taken = restored.count(state, "taken", most=most) if lanes is not None else 0
        self._rng.bit_generator.state = state["rng"]


make = Rollout
