"""The protocols of environments, memories, algorithms and strategies, along the data path.

The protocol of processes, `Backend`, is in backend.py.
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
    """What `Options.check` may read of the plan."""

    def flag(self, options: Options, name: str) -> str:
        """The option as a flag: ``--hogwild.copy``."""

    def is_from_flag(self, options: Options, name: str) -> bool:
        """Whether the user set it for this run, not a default, a preset or an older run."""


class Environment(Protocol):
    """n environments. It resets finished episodes itself, with seeds from its own stream.

    Implementations inherit from this class, and so get its defaults.
    """

    spec: EnvSpec
    pictures_per_s: float = 10.0  # at which it is to be shown

    def reset(self) -> Array:
        """Begins an episode in every lane; returns the observations to act on."""

    def step(self, actions: Array) -> Step: ...

    def state(self) -> State:
        """The seed generator, and the seed and actions of every running episode."""

    def restore(self, state: State) -> Array:
        """Replays the running episodes; returns the observations to act on."""

    def render_lane(self, lane: int) -> Any:  # noqa: ARG002
        """What a lane looked like after its last step, as the render mode has it."""
        return None

    def close(self) -> None: ...


class Source(Protocol):
    """What a learner needs of a memory."""

    def due(self, demand: Any, targets: Callable[[Any], Any]) -> Iterator[Batch]:
        """The batches that are due. They are drawn together and pass through `targets` once."""

    def report(self, batch: Batch, priorities: Tensor) -> None: ...

    @property
    def torn_rows(self) -> int:
        """How many rows were overwritten while they were read. They were drawn again."""
        return 0


class Memory(Source, Protocol):
    @property
    def capacity(self) -> int:
        """How many rows it can hold; 0: it keeps none after use."""
        return 0

    @property
    def filled(self) -> int:
        """How many rows it holds."""
        return 0

    def extend(self, rows: Rows) -> None: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Algorithm(Protocol):
    """The maths and nothing else: no environment, optimizer, loop, rank or lock.

    Implementations inherit from this class, and so get its defaults.
    """

    modules: Mapping[str, nn.Module]  # by part; each part has its own optimizer
    demand: AnyDemand
    remembers: Mapping[str, str]  # columns of `act` that the memory keeps: name -> dtype
    imagined: ImaginedMemory | None = None  # where it keeps what its model made up
    imagined_steps: int = 0  # that it made up in this process, and keeps or kept

    def exploration(self, agent_steps: int) -> float: ...  # epsilon; always 1: it samples

    def lr(self, agent_steps: int) -> float: ...

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        """Actions, and columns for the memory. ``exploration`` has one epsilon per row."""

    def targets(self, experience: Any) -> Any:
        """Once per draw (a `Batch`) or rollout (a `Rollout`), without gradient.

        Adds columns that do not change between updates. Must not change its argument, which may
        be used again.
        """

    def losses(self, batch: Batch) -> Iterator[Losses]:
        """One part after the other. The learner applies each before it asks for the next."""

    def refreshed(self, version: int) -> bool:
        """Called after each pull. Copies the target network if it is due; returns whether."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class ImaginedMemory(Protocol):
    """Steps that a model made up, kept for a while. Several learners may share it.

    Columns of n rows: observation, action, reward, discount, next_observation, origin.
    """

    def extend(self, steps: Mapping[str, Array]) -> None: ...

    def draw(self, chances: Array) -> Mapping[str, Array] | None:
        """A step for each number of [0, 1), each step equally likely. None: there are none."""

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

    This saves filling a large gradient with zeros. `networks.dense.Dense` is one.
    """

    weight: nn.Parameter
    blank: bool  # the next backward pass replaces `weight.grad`

    @property
    def large(self) -> bool:
        """Whether replacing is faster. Gradients of small layers are filled with zeros."""

    def changed(self) -> None:
        """Call it when the weight may have changed, since the layer may hold a rounded copy."""


class Parameters(Protocol):
    """A learner's access to the shared parameters. Implementations inherit from this class."""

    clips: bool = False  # whether `push` clips the gradient; if not, the learner does

    def pull(self, model: Model) -> int:
        """Refreshes the local copy; returns its version."""

    def push(
        self, gradient: Tensor, *, part: str, version: int, lr: float, loss: float = 0.0
    ) -> None:
        """Hands over one part's flat gradient, its version, and the present learning rate."""

    def keep(self) -> None:
        """Called when the learner's state is saved: afterwards main's node has its parameters."""
        return


class Strategy(Protocol):
    """What each strategy implements: where the learning state lives, and how learners reach it.

    Main makes it before any job runs. Jobs capture it and call `join` in their own process.
    Implementations inherit from this class, and so get its defaults.
    """

    ledger: Ledger
    in_step: bool = False  # whether all learners make the same updates at the same time

    def join(self, model: Model, index: int) -> Parameters: ...

    def for_learners(self) -> Strategy:
        """What jobs capture, without what only main and hosted objects use."""
        return self

    def newest(self) -> Tensor:
        """The present parameters, for evaluations, and for checkpoints while all wait."""

    def version(self) -> int:
        """How many updates the parameters contain: gradients applied by any learner."""

    def diagnostics(self) -> Mapping[str, float]:
        """Metrics of this strategy beside staleness, by their names in TensorBoard."""
        return {}

    def state(self) -> State:
        """What a checkpoint holds beside the parameters, in a form that every strategy reads.

        `version`; `optimizers`: the state of each part's optimizer; `own`: by the strategy's name,
        what only the same strategy with as many learners can use.
        """

    def restore(self, vector: Tensor, state: State) -> None:
        """From the state of any strategy with any number of learners."""


class Ledger(Protocol):
    """Counts applied gradients by staleness, and dropped ones. Also steps of actors."""

    def applied(self, writer: int, staleness: int) -> None: ...

    def staleness(self) -> tuple[float, float, int]:
        """Mean, 95th percentile, and how many gradients were too stale and dropped."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...
