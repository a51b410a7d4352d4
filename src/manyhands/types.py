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
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyhands.errors import BadRequest as BadRequest
from manyhands.errors import Failure as Failure
from manyhands.errors import Refusal as Refusal
from manyhands.knobs import knob as knob
from manyhands.posts import Average as Average
from manyhands.posts import Channel as Channel
from manyhands.posts import Fault as Fault
from manyhands.posts import Future as Future
from manyhands.posts import Group as Group
from manyhands.posts import Handle as Handle
from manyhands.posts import Job as Job
from manyhands.posts import Lock as Lock
from manyhands.posts import Post as Post
from manyhands.posts import Seat as Seat
from manyhands.posts import Work as Work

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
Array = NDArray[Any]
State = dict[str, Any]
"""What a checkpoint holds of an object: a tree of dicts whose leaves are JSON values or arrays."""


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


class Break(NamedTuple):
    """Environments that raised, or returned what is no number, and were made anew."""

    lanes: tuple[int, ...]
    cause: str
    detail: str  # the traceback


class Step(NamedTuple):
    """What one step of n environments returned.

    Where one broke nothing is known of the step: reward 0, discount 1, not ended, and the
    observation begins an episode of another environment in its place.
    """

    observation: Array  # [n, *obs] to act on next; a new episode's first one where `ended`
    reward: Array  # [n] float32, raw
    discount: Array  # [n] float32; 0: terminated, or a life lost when so configured; else 1
    ended: Array  # [n] bool; the episode is over, terminated or truncated
    last: Array  # [k, *obs] the true last observations of the k episodes that ended, by lane
    broken: tuple[Break, ...] = ()


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
    broken: Array | None = None  # [n] bool; nothing is known of this step; the next row is `first`


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
        return self if str(device) == "cpu" else self._map(methodcaller("to", device), self.rows)

    def _map(self, change: Callable[[Tensor], Tensor], rows: Array) -> Batch:
        names = ("observation", "action", "reward", "discount", "next_observation", "weight")
        columns = {name: change(column) for name, column in self.columns.items()}
        changed = {name: change(getattr(self, name)) for name in names}
        return replace(self, rows=rows, columns=columns, **changed)


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
        return self if str(device) == "cpu" else self._map(methodcaller("to", device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Rollout:
        names = ("action", "reward", "discount", "ended", "after", "after_at")
        columns = {name: change(column) for name, column in self.columns.items()}
        return replace(self, columns=columns, **{n: change(getattr(self, n)) for n in names})


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


@dataclass(frozen=True, slots=True)
class QueueDemand:
    """What an algorithm asks of a queue: whole rollouts, in order, from whoever made them."""

    memories: ClassVar[tuple[str, ...]] = ("queue",)
    steps: int  # of every lane in a rollout
    batch_rollouts: int  # make a batch
    slots: int  # rollouts of one actor that may wait; with that many it waits itself
    gamma: float
    again: int = 0  # times a batch may come again to who learns apart, while no other waits

    def batch_steps(self, lanes: int) -> int:
        return self.steps * lanes * self.batch_rollouts


Experience = TypeVar("Experience", Batch, Rollout)
AnyDemand = Demand | RolloutDemand | QueueDemand


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


class Source(Protocol):
    """What a learner needs of a memory."""

    def due(self, demand: Any, targets: Callable[[Any], Any]) -> Iterator[Batch]:
        """What is to be learned now. Much is drawn at once, seen by `targets`, and cut to size."""

    def report(self, batch: Batch, priorities: Tensor) -> None: ...


class Memory(Source, Protocol):
    def extend(self, rows: Rows) -> None: ...

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


class Parameters(Protocol):
    """A learner's hold on the shared parameters."""

    def pull(self, model: Model) -> int:
        """Refreshes the local copy; returns its version."""

    def push(
        self, gradient: Tensor, *, part: str, version: int, lr: float, loss: float = 0.0
    ) -> None:
        """One flat gradient of one part, the version it was computed at, the rate of now."""


class Strategy(Protocol):
    """What each strategy implements: where the learning state lives, and how learners reach it.

    Made by main before anybody runs, and captured by the jobs; `join` is called where they run.
    """

    ledger: Ledger

    def join(self, model: Model, index: int) -> Parameters: ...

    def newest(self) -> Tensor:
        """The parameters as they are now: for evaluation, and for a checkpoint when all wait."""

    def version(self) -> int:
        """How many updates the parameters contain: gradients applied, by whomever."""

    def state(self) -> State:
        """What a checkpoint holds beside the parameters: versions, optimizers."""

    def restore(self, vector: Tensor, state: State) -> None: ...


class Ledger(Protocol):
    """What became of every gradient, counted where it was applied."""

    def staleness(self) -> tuple[float, float, int]:
        """Mean, 95th percentile, and how many gradients were too stale and dropped."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Backend(Protocol):
    """Where workers run and how they talk. Knows nothing of reinforcement learning.

    What it makes (shared tensors and arrays and views of them, handles, channels, locks) may be
    captured by jobs and factories and is then the same thing there. Make them before `run`.
    """

    def share(self, tensor: Tensor) -> Tensor:
        """The tensor in memory every worker sees; refused where there is none."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Zeros in memory every worker sees."""

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots",
    ) -> Handle:  # fmt: skip
        """An object in a process of its own, made anew from its factory if that dies.

        What must survive lives in shared tensors the factory captures. `numbers`: of the longest
        vector told, asked or answered. `depth`: how many tells of a client may wait.
        `transport`: "slots" in shared memory, or a "queue" of pickled messages, where both exist.
        """

    def channel(self, capacity: int) -> Channel: ...

    def pause(self) -> Callable[[], None]:
        """To be called where others may come in between; nothing where they do so anyway."""

    def lock(self) -> Lock: ...

    def group(self, n: int, numbers: int = 65_536) -> Group:
        """`numbers`: of the longest vector averaged."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Fault | None]:
        """Until all have ended or it is closed. Yields whenever main may look on."""

    def park(self, timeout_s: float) -> frozenset[int]:
        """Every worker waits at its next yield. Returns the seats of who is not there in time."""

    def go_on(self) -> None: ...

    def stop(self) -> None: ...  # every worker, at its next yield

    def attend(self) -> list[Fault]:
        """To be called often by a main that does something else meanwhile; `run` does it itself.

        And once after it, for what became of those who were told to leave.
        """

    def staff(self) -> list[Post]: ...

    def close(self) -> None: ...  # ends hosted objects as well
