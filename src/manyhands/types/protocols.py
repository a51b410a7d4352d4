"""The seams: what environments, memories, algorithms and strategies offer, in the data's order.

The seam of processes, `Backend`, is in backend.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn
from manyhands.types.data import (
    AnyDemand,
    Array,
    Batch,
    EnvSpec,
    Losses,
    Options,
    Rows,
    State,
    Step,
)


class PlanView(Protocol):
    """What `Options.check` may ask of the plan that the options belong to."""

    def flag(self, options: Options, name: str) -> str:
        """How the command line spells an option of that section: ``--hogwild.copy``."""

    def is_from_flag(self, options: Options, name: str) -> bool:
        """Whether a person set it for this run. Defaults, presets and old runs do not count."""


class Environment(Protocol):
    """n environments. It resets finished episodes itself, with seeds from its own stream."""

    spec: EnvSpec

    def reset(self) -> Array:
        """Begins an episode in every lane; returns the observations to act on."""

    def step(self, actions: Array) -> Step: ...

    def state(self) -> State:
        """The seed stream, and of every running episode its seed and its actions so far."""

    def restore(self, state: State) -> Array:
        """Plays the running episodes again; returns the observations to act on."""

    def close(self) -> None: ...


class Source(Protocol):
    """What a learner needs of a memory."""

    def due(self, demand: Any, targets: Callable[[Any], Any]) -> Iterator[Batch]:
        """What is to be learned now. Much is drawn at once, seen by `targets`, and cut to size."""

    def report(self, batch: Batch, priorities: Tensor) -> None: ...

    @property
    def torn_rows(self) -> int:
        """Rows that were overwritten while they were read, and drawn again."""
        return 0


class Memory(Source, Protocol):
    @property
    def capacity(self) -> int:
        """Rows it can hold; 0: it keeps nothing for long."""
        return 0

    @property
    def filled(self) -> int:
        """Rows it holds."""
        return 0

    def extend(self, rows: Rows) -> None: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Algorithm(Protocol):
    """The maths and nothing else: no environment, optimizer, loop, rank or lock."""

    modules: Mapping[str, nn.Module]  # what is trained, by part; each part has its own optimizer
    demand: AnyDemand
    remembers: Mapping[str, str]  # columns `act` wants kept: name -> dtype

    def exploration(self, agent_steps: int) -> float: ...  # epsilon; 1 for ever: it samples

    def lr(self, agent_steps: int) -> float: ...

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        """Actions, and the columns to remember. ``exploration`` is one epsilon a row."""

    def targets(self, experience: Any) -> Any:
        """Once per draw (a `Batch`) or rollout (a `Rollout`), without gradient.

        Adds columns of what does not change from one update to the next. What it is given may come
        again, so it stays as it is.
        """

    def losses(self, batch: Batch) -> Iterator[Losses]:
        """One part after the other; each is applied before the next is asked for."""

    def refreshed(self, version: int) -> bool:
        """After each pull. Copies the target network when its period has passed, and says so."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Model(Protocol):
    """All trained parameters as one vector, all gradients as another, cut into parts."""

    vector: Tensor
    gradient: Tensor
    parts: Mapping[str, slice]

    def live_in(self, vector: Tensor) -> None: ...


@runtime_checkable
class ReplacingLayer(Protocol):
    """A layer that can replace its weight's gradient instead of adding to it.

    So nobody has to fill a large gradient with zeros. `networks.dense.Dense` is one.
    """

    weight: nn.Parameter
    blank: bool  # the next backward pass replaces `weight.grad`, whatever that holds

    @property
    def large(self) -> bool:
        """Whether it is worth it. Gradients of small layers are filled with zeros."""

    def changed(self) -> None:
        """Call it whenever the weight may have changed: copies of it are then out of date."""


class Parameters(Protocol):
    """A learner's access to the shared parameters. Implementations inherit from this class."""

    clips: bool = False  # whether `push` clips the gradient; if not, the learner does

    def pull(self, model: Model) -> int:
        """Refreshes the local copy; returns its version."""

    def push(
        self, gradient: Tensor, *, part: str, version: int, lr: float, loss: float = 0.0
    ) -> None:
        """One flat gradient of one part, the version it was computed at, the rate of now."""


class Strategy(Protocol):
    """What each strategy implements: where the learning state lives, and how learners reach it.

    Main makes it before any job runs. Jobs capture it and call `join` in their own process.
    Implementations inherit from this class, and so get its defaults.
    """

    ledger: Ledger
    in_step: bool = False  # whether all learners make the same updates at the same time

    def join(self, model: Model, index: int) -> Parameters: ...

    def newest(self) -> Tensor:
        """The parameters as they are now: for evaluation, and for a checkpoint when all wait."""

    def version(self) -> int:
        """How many updates the parameters contain: gradients applied by any learner."""

    def diagnostics(self) -> Mapping[str, float]:
        """Metrics of this strategy beside staleness, by their names in TensorBoard."""
        return {}

    def state(self) -> State:
        """What a checkpoint holds beside the parameters: versions, optimizers."""

    def restore(self, vector: Tensor, state: State) -> None: ...


class Ledger(Protocol):
    """What became of every gradient, counted where it was applied."""

    def staleness(self) -> tuple[float, float, int]:
        """Mean, 95th percentile, and how many gradients were too stale and dropped."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...
