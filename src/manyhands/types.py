"""The map of manyhands: its words, the data that walks through it, and its five seams.

Words
-----
agent step   one decision in one environment. Every count is in agent steps over all workers
             unless its name says otherwise (``target_period_updates``).
frame        one emulator frame (an Atari agent step is four).
update       one gradient applied to the shared parameters.
version      how many updates a copy of the parameters contains.
staleness    the version a gradient was applied at minus the version it was computed at.
actor        steps environments and records what happened.
learner      turns experience into gradients.
worker       a process that does both in one loop.
strategy     where the parameters live and how a gradient reaches them.
backend      where processes run and how they talk.
lane         the unbroken, time-ordered record of one environment.
memory       what is kept of experience and how it is drawn.
task         what to learn.
recipe       how: algorithm x strategy x roles x memory, with values.

The data walks one way round: envs -> actor -> memory -> learner -> strategies -> actor.
Importing this file imports neither torch nor ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
Array = NDArray[Any]
State = dict[str, Any]
"""What a checkpoint holds of an object: a tree of dicts whose leaves are JSON values or arrays."""


# --- Errors: one sentence that says what and where, one that says what to do -------------------


class Refusal(Exception):
    """Something a person must know. ``code`` is the exit code of the command."""

    code = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class BadRequest(Refusal):
    """What was asked for cannot be done as asked; nothing was started."""

    code = 2


class Failure(Refusal):
    """What was asked for was begun and could not be finished."""


# --- Hyper-parameters: written once, beside the code that uses them -----------------------------


def knob(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> T:
    """A dataclass field with its reason and its range: ``low <= x <= high``, ``above < x``."""
    metadata = {"doc": doc, "low": low, "above": above, "high": high, "choices": tuple(choices)}
    if isinstance(default, list | dict):
        raise TypeError("a knob's default is immutable: use a tuple")
    made: T = field(default=default, metadata=metadata)
    return made


# --- Data ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What the rest of the house needs to know of an environment."""

    id: str
    lanes: int  # environments stepped at once
    frame_shape: tuple[int, ...]
    frame_dtype: str  # "uint8" or "float32"
    stack: int  # newest frames that make an observation; 1: the frame is the observation
    actions: int
    frames_per_step: int = 1

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.stack, *self.frame_shape) if self.stack > 1 else self.frame_shape


class Step(NamedTuple):
    """What one step of n environments returned."""

    observation: Array  # [n, *obs] to act on next; a new episode's first one where `ended`
    reward: Array  # [n] float32, raw
    discount: Array  # [n] float32; 0: terminated, or a life lost when so configured; else 1
    ended: Array  # [n] bool; the episode is over, terminated or truncated
    last: Array  # [k, *obs] the true last observations of the k episodes that ended, by lane


class Rows(NamedTuple):
    """One vector step as the memory keeps it: a row a lane, one more where an episode ended."""

    frame: Array  # [n, *frame] the newest frame of the observation acted on
    action: Array  # [n] int32
    reward: Array  # [n] float32, as learned from (clipped or scaled)
    discount: Array  # [n] float32
    first: Array  # [n] bool; this observation began an episode
    ended: Array  # [n] bool
    last_frame: Array  # [k, *frame] the newest frames of the true last observations
    next_frame: Array  # [n, *frame] the newest frames of the observations to act on next
    columns: Mapping[str, Array]  # [n, ...] each; what `act` asked to remember


@dataclass(slots=True)
class Batch:
    """What a gradient is computed from. Valid until the next draw: its buffers are used again."""

    observation: Tensor  # [b, *obs]
    action: Tensor  # [b] int64
    reward: Tensor  # [b] float32; the n-step sum
    discount: Tensor  # [b] float32; what the bootstrap is multiplied by, gamma included
    next_observation: Tensor  # [b, *obs]; empty where `targets` held all that follows
    weight: Tensor  # [b] float32; importance weights, 1 where drawn uniformly
    rows: Array  # [b] int64; where in the memory each came from, for `report`
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: Any) -> Batch:
        """Itself on the CPU, a copy elsewhere."""
        if str(device) == "cpu":
            return self
        return Batch(
            self.observation.to(device),
            self.action.to(device),
            self.reward.to(device),
            self.discount.to(device),
            self.next_observation.to(device),
            self.weight.to(device),
            self.rows,
            {name: column.to(device) for name, column in self.columns.items()},
        )


@dataclass(slots=True)
class Rollout:
    """The last t steps of n lanes, in order, as `targets` sees them."""

    action: Tensor  # [t, n] int64
    reward: Tensor  # [t, n] float32
    discount: Tensor  # [t, n] float32; gamma included; 0 where nothing follows
    ended: Tensor  # [t, n] bool; what follows in this lane is another episode
    after: Tensor  # [m, *obs] what followed the steps whose next step is not in this rollout
    after_at: Tensor  # [m] int64; the steps these followed, as t * n + lane
    columns: Mapping[str, Tensor]  # [t, n, ...] each; what `act` remembered and `targets` added

    def to(self, device: Any) -> Rollout:
        """Itself on the CPU, a copy elsewhere."""
        if str(device) == "cpu":
            return self
        return Rollout(
            self.action.to(device),
            self.reward.to(device),
            self.discount.to(device),
            self.ended.to(device),
            self.after.to(device),
            self.after_at.to(device),
            {name: column.to(device) for name, column in self.columns.items()},
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """What an algorithm asks of a replay memory."""

    memories: ClassVar[tuple[str, ...]] = ("replay", "prioritized")
    batch_size: int
    steps_per_update: float
    warmup_steps: int
    n_step: int
    gamma: float


@dataclass(frozen=True, slots=True)
class RolloutDemand:
    """What an algorithm asks of a rollout: it learns from what it just did, then forgets it."""

    memories: ClassVar[tuple[str, ...]] = ("rollout",)
    steps: int  # of every lane
    epochs: int  # times everything is learned from
    minibatches: int  # in an epoch
    gamma: float


Experience = TypeVar("Experience", Batch, Rollout)
AnyDemand = Demand | RolloutDemand


class Losses(NamedTuple):
    """One part's losses, before weights and averaging, which are the learner's alone."""

    part: str
    per_sample: Tensor  # [b]
    priorities: Tensor  # [b] |TD error|, not the Huber loss; detached
    diagnostics: Mapping[str, Tensor]  # scalars, detached


# --- The five seams, in the order of the data path ---------------------------------------------


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


class Memory(Protocol):
    def extend(self, rows: Rows) -> None: ...

    def due(self, demand: Any, targets: Callable[[Any], Any]) -> Iterator[Batch]:
        """What is to be learned now. Much is drawn at once, seen by `targets`, and cut to size."""

    def report(self, batch: Batch, priorities: Tensor) -> None: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Algorithm(Protocol):
    """The maths and nothing else: no environment, optimizer, loop, rank or lock."""

    modules: Mapping[str, nn.Module]  # what is trained, by part; each part has its own optimizer
    demand: AnyDemand
    remembers: Mapping[str, str]  # columns `act` wants kept: name -> dtype

    def exploration(self, agent_steps: int) -> float: ...

    def lr(self, agent_steps: int) -> float: ...

    def act(
        self, observation: Array, exploration: Array, rng: np.random.Generator
    ) -> tuple[Array, Mapping[str, Array]]:
        """Actions, and the columns to remember. ``exploration`` is one epsilon a row."""

    def targets(self, experience: Any) -> Any:
        """Once per draw (a `Batch`) or rollout (a `Rollout`), without gradient.

        Adds columns of what does not change from one update to the next.
        """

    def losses(self, batch: Batch) -> Iterator[Losses]:
        """One part after the other; each is applied before the next is asked for."""

    def refreshed(self, version: int) -> None:
        """After each pull. Copies the target network when its period has passed."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Model(Protocol):
    """All trained parameters as one vector, all gradients as another, cut into parts."""

    vector: Tensor
    gradient: Tensor
    parts: Mapping[str, slice]


class Parameters(Protocol):
    """What each strategy implements."""

    def pull(self, model: Model) -> int:
        """Refreshes the local copy; returns its version."""

    def push(self, gradient: Tensor, *, part: str, version: int, lr: float) -> None:
        """One flat gradient of one part, the version it was computed at, the rate of now."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Future(Protocol):
    def result(self, timeout_s: float) -> Any: ...


class Handle(Protocol):
    """A hosted object, wherever it lives."""

    def tell(self, method: str, vector: Tensor) -> bool:
        """One way, bounded; False when full. The vector is taken by value."""

    def ask(self, method: str, vector: Tensor | None = None) -> Future: ...


class Channel(Protocol):
    """Lossy and bounded: a worker never waits for a reader."""

    def put(self, item: State) -> bool: ...

    def drain(self) -> list[State]: ...


class Group(Protocol):
    """n peers that average with all (`reduce`) or with one (`exchange`)."""

    def reduce(self, vector: Tensor) -> Tensor: ...

    def exchange(self, vector: Tensor, peer: int) -> Tensor: ...

    def members(self) -> frozenset[int]: ...


class Backend(Protocol):
    """Where workers run and how they talk. Knows nothing of reinforcement learning."""

    def share(self, tensor: Tensor) -> Tensor:
        """The tensor in memory every worker sees; refused where there is none."""

    def host(self, factory: Callable[[], object]) -> Handle: ...

    def channel(self, capacity: int) -> Channel: ...

    def group(self, n: int) -> Group: ...

    def run(self, workers: Sequence[Callable[[], Iterator[None]]]) -> Iterator[None]:
        """Runs the workers, supervised, and yields whenever main may look on."""
