"""Replay: rows kept in lanes and drawn when due; uniformly, unless another chooser is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from manyhands.memory import Config, rows_per_lane
from manyhands.memory.lanes import Lanes, NStep
from manyhands.memory.marks import Marks
from manyhands.types import Array, BadRequest, Batch, Demand, EnvSpec, Rows, State

AT_ONCE = 8  # batches drawn together: one call of everything for all of them
TRIES = 8  # rounds of drawing before all rows are looked through; seldom more than one is needed


class Choice(NamedTuple):
    """Rows chosen, what follows them, and how much each counts."""

    rows: Array
    reward: Array
    discount: Array
    bootstrap: Array
    weight: Array


class Chooser(Protocol):
    """Which rows are drawn. All else about a replay is the same for all of them."""

    def choose(
        self, demand: Demand, size: int, steps_seen: int, *, again: bool = False
    ) -> Choice | None:
        """So many rows that start a transition; None if there are none. `again`: in place of some
        of those chosen last.
        """

    def report(self, rows: Array, priorities: Tensor) -> None: ...

    def state(self) -> State:
        """What a checkpoint keeps beside the lanes."""

    def restore(self, state: State) -> None:
        """After the lanes; an empty state where there is none."""


def follow(lanes: Lanes, ids: Array, demand: Demand) -> Choice:
    """What follows these rows, those left out that start no transition."""
    ahead = lanes.n_step(ids, demand.n_step, demand.gamma)
    if not ahead.known.all():
        ids, ahead = ids[ahead.known], NStep(*(part[ahead.known] for part in ahead))
    ones = np.ones(len(ids), np.float32)
    return Choice(ids, ahead.reward, ahead.discount, ahead.bootstrap, ones)


class Uniform:
    """Every row that starts a transition alike, with replacement."""

    def __init__(self, lanes: Lanes, config: Config, rng: np.random.Generator) -> None:  # noqa: ARG002
        self.lanes, self._rng = lanes, rng

    def choose(
        self,
        demand: Demand,
        size: int,
        steps_seen: int,  # noqa: ARG002
        *,
        again: bool = False,  # noqa: ARG002
    ) -> Choice | None:
        """Draws from all rows and rejects: one in an episode or so. Some are drawn to spare."""
        found: list[Choice] = []
        for _ in range(TRIES):
            choice = follow(self.lanes, self._propose(size + size // 8 + 2), demand)
            if not found and len(choice.rows) >= size:
                return Choice(*(part[:size] for part in choice))
            found.append(choice)
            if sum(len(some.rows) for some in found) >= size:
                return Choice(*(np.concatenate(parts)[:size] for parts in zip(*found, strict=True)))
        ids = self.lanes.drawable(demand.n_step)
        return follow(self.lanes, self._rng.choice(ids, size), demand) if ids.size else None

    def _propose(self, size: int) -> Array:
        """Ids of rows, those that start no transition among them."""
        oldest, count = self.lanes.candidates()
        end = np.cumsum(count)
        if not end[-1]:
            return np.empty(0, np.int64)
        place = self._rng.integers(end[-1], size=size)
        lane = np.searchsorted(end, place, side="right")
        return self.lanes.id_of(lane, place + (oldest - end + count)[lane])

    def report(self, rows: Array, priorities: Tensor) -> None:
        """Uniform draws have no use for priorities."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Nothing is kept."""


class Places(NamedTuple):
    """Where a memory's rows are."""

    written: Lanes
    drawn: Lanes  # the same, or everybody's
    marks: Marks | None = None  # of those drawn from, where they outlive who draws

    @classmethod
    def alone(cls, lanes: Lanes, marks: Marks | None = None) -> Places:
        return cls(lanes, lanes, marks)


class Replay:
    """Draws as many batches as the steps seen pay for.

    What is owed follows from counters alone: one update for every `steps_per_update` steps after
    the warm-up. What fell due while nothing could be drawn is forgiven, not made up for in a
    burst; and a memory that came back empty warms up again.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: Config,
        *,
        columns: Mapping[str, str],
        rng: np.random.Generator,
        places: Places | None = None,
        chooser: Callable[[Lanes, Config, np.random.Generator], Chooser] = Uniform,
    ) -> None:
        """`config.capacity` is what this memory keeps: one worker's share if there are many."""
        rows = rows_per_lane(spec, config.capacity)
        own = places or Places.alone(Lanes(spec, rows, columns=columns))
        self.lanes, self.drawn = own.written, own.drawn
        self.steps_seen = 0
        self.elsewhere = 0  # agent steps whose rows go to other memories: schedules count them all
        self.empty_at = 0  # steps seen when this memory was last empty
        self.updates_drawn = 0
        self.updates_forgiven = 0
        self.torn_rows = 0  # overwritten while they were read, and drawn again
        self._rng = rng
        self.chooser = chooser(self.drawn, config, rng)
        self._batches: dict[int, tuple[Batch, dict[str, Array]]] = {}
        # Views of our own tensors by their id, and by how many rows a view has.
        self._views: dict[int, dict[int, Sequence[Tensor]]] = {}

    @property
    def capacity(self) -> int:
        return self.lanes.spec.lanes * self.lanes.rows

    @property
    def filled(self) -> int:
        return self.lanes.filled

    def extend(self, rows: Rows) -> None:
        self.lanes.extend(rows)
        self.steps_seen += len(rows.action)

    def due(self, demand: Demand, targets: Callable[[Batch], Batch]) -> Iterator[Batch]:
        self._refuse_too_small(demand)
        while (owed := self._owed(demand)) > 0:
            size = demand.batch_size * min(owed, AT_ONCE)
            drawn = self._draw(demand, size) if self._warm(demand) else None
            if drawn is None:
                self.updates_forgiven += owed
                return
            for batch in self._cut(targets(drawn), demand.batch_size):
                self.updates_drawn += 1
                yield batch

    def _draw(self, demand: Demand, size: int, *, again: bool = False) -> Batch | None:
        """So many rows, copied; None if there is nothing to draw from."""
        seen, whole = self.steps_seen + self.elsewhere, False
        while not whole:  # until some of it is
            self.drawn.look()
            choice = self.chooser.choose(demand, size, seen, again=again)
            if choice is None:
                return None
            batch = self._batch(choice)
            torn = self.drawn.torn(choice.rows)
            if not torn.size:
                return batch
            self.torn_rows += torn.size
            whole = torn.size < size
        # Some to spare: buffers of few sizes are kept.
        many = min(1 << (torn.size - 1).bit_length(), size - 1)
        if self._draw(demand, many, again=True) is None:
            return None
        for name, buffer in self._batches[size][1].items():
            buffer[torn] = self._batches[many][1][name][: torn.size]
        return batch

    def report(self, batch: Batch, priorities: Tensor) -> None:
        self.chooser.report(batch.rows, priorities)

    # --- How many ---------------------------------------------------------------------------

    def go_on(self, steps_seen: int, demand: Demand, drawn: int | None = None) -> None:
        """Follows another memory of these lanes, which drew for so many updates: its rows are
        there, and the steps these updates were paid by are seen. Without that number all of them
        are, and nothing is owed.
        """
        self.drawn.look()
        self.empty_at = 0 if self.drawn.filled else steps_seen
        if drawn is None:
            self.steps_seen = steps_seen
            self.updates_forgiven = max(0, self._owed(demand))
            return
        paid = demand.warmup_steps + math.ceil(drawn * demand.steps_per_update)
        self.steps_seen, self.updates_forgiven = min(steps_seen, paid), drawn

    def owes(self, demand: Demand) -> bool:
        return self._owed(demand) > 0

    def _owed(self, demand: Demand) -> int:
        if self.steps_seen < demand.warmup_steps:
            return 0
        earned = math.floor((self.steps_seen - demand.warmup_steps) / demand.steps_per_update)
        return earned - self.updates_drawn - self.updates_forgiven

    def _warm(self, demand: Demand) -> bool:
        fresh = self.steps_seen - self.empty_at
        enough = min(demand.batch_size, self.capacity)
        # Every step fills a row, so the rows need not be counted for long.
        return fresh >= demand.warmup_steps and (fresh >= enough or self.filled >= enough)

    def _refuse_too_small(self, demand: Demand) -> None:
        least = self.lanes.spec.stack + demand.n_step
        if self.lanes.rows < least:
            raise BadRequest(
                f"a lane of {self.lanes.rows} rows never holds a whole {demand.n_step}-step sum",
                f"Set memory.capacity to at least {least * self.lanes.spec.lanes} a worker.",
            )

    # --- The batch --------------------------------------------------------------------------

    def _batch(self, choice: Choice) -> Batch:
        size = len(choice.rows)
        if size not in self._batches:
            self._batches[size] = self._allocate(size)
        batch, buffers = self._batches[size]
        self.drawn.observations(choice.rows, buffers["observation"])
        self.drawn.observations(choice.bootstrap, buffers["next_observation"])
        buffers["reward"][:] = choice.reward
        buffers["discount"][:] = choice.discount
        buffers["rows"][:] = choice.rows
        for name in ("action", *self.lanes.columns):
            buffers[name][:] = self.drawn.flat[name][choice.rows]
        buffers["weight"][:] = choice.weight
        return batch

    def _allocate(self, size: int) -> tuple[Batch, dict[str, Array]]:
        """A batch whose tensors are views of NumPy buffers, made once and used for every draw."""
        spec, flat = self.lanes.spec, self.lanes.flat
        buffers: dict[str, Array] = {
            "observation": np.zeros((size, *spec.observation_shape), spec.frame_dtype),
            "action": np.zeros(size, np.int64),
            "reward": np.zeros(size, np.float32),
            "discount": np.zeros(size, np.float32),
            "next_observation": np.zeros((size, *spec.observation_shape), spec.frame_dtype),
            "weight": np.ones(size, np.float32),
        }
        tensors = {name: torch.from_numpy(buffer) for name, buffer in buffers.items()}
        columns = {
            name: np.zeros((size, *flat[name].shape[1:]), flat[name].dtype)
            for name in self.lanes.columns
        }
        rows = np.zeros(size, np.int64)
        remembered = {name: torch.from_numpy(column) for name, column in columns.items()}
        self._views |= {id(ours): {} for ours in (*tensors.values(), *remembered.values())}
        batch = Batch(**tensors, rows=rows, columns=remembered)
        return batch, {**buffers, **columns, "rows": rows}

    def _cut(self, drawn: Batch, size: int) -> Iterator[Batch]:
        """Batches of `size` rows each, of which there is a whole number."""
        if len(drawn.rows) == size:
            yield drawn
            return
        columns = {name: self._cuts(column, size) for name, column in drawn.columns.items()}
        rows = drawn.rows.reshape(-1, size)
        cuts = zip(
            self._cuts(drawn.observation, size),
            self._cuts(drawn.action, size),
            self._cuts(drawn.reward, size),
            self._cuts(drawn.discount, size),
            self._cuts(drawn.next_observation, size),
            self._cuts(drawn.weight, size),
            strict=True,
        )
        for i, (now, action, reward, discount, then, weight) in enumerate(cuts):
            some = {name: column[i] for name, column in columns.items()}
            yield Batch(now, action, reward, discount, then, weight, rows[i], some)

    def _cuts(self, tensor: Tensor, size: int) -> Sequence[Tensor]:
        """Views of our own buffers are made once: to make one costs as much as to fill it."""
        kept = self._views.get(id(tensor), {})
        if size not in kept:
            kept[size] = tensor.view(-1, size, *tensor.shape[1:]).unbind()
        return kept[size]

    # --- Checkpoints ------------------------------------------------------------------------

    def state(self) -> State:
        """`lanes` are views: see `Lanes.state`. Without them `restore` starts empty."""
        return {
            "lanes": {**self.lanes.state(), "chooser": self.chooser.state()},
            "rng": self._rng.bit_generator.state,
            "steps_seen": self.steps_seen,
            "empty_at": self.empty_at,
            "updates_drawn": self.updates_drawn,
            "updates_forgiven": self.updates_forgiven,
        }

    def restore(self, state: State) -> None:
        lanes = state.get("lanes")
        if lanes is not None:
            self.lanes.restore(lanes)
            self.empty_at = state["empty_at"]
        else:
            self.lanes.clear()
            self.empty_at = state["steps_seen"]
        self.chooser.restore(lanes["chooser"] if lanes is not None else {})
        self._rng.bit_generator.state = state["rng"]
        self.steps_seen = state["steps_seen"]
        self.updates_drawn = state["updates_drawn"]
        self.updates_forgiven = state["updates_forgiven"]


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    places: Places | None = None,
) -> Replay:
    return Replay(spec, config, columns=columns, rng=rng, places=places)
