"""Plain data: option fields, then what goes round, from an environment's step to the losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.types.protocols import PlanView

T = TypeVar("T")
Array = NDArray[Any]
State = dict[str, Any]
"""What a checkpoint holds of an object: a tree of dicts whose leaves are JSON values or arrays."""
VALUES = frozenset({"q_taken", "q_best"})  # columns: what an actor thought its actions worth


def option(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> T:
    """A dataclass field with one sentence and a range: ``low <= x <= high``, ``above < x``."""
    metadata = {"doc": doc, "low": low, "above": above, "high": high, "choices": tuple(choices)}
    if isinstance(default, list | dict):
        raise TypeError("an option's default is immutable: use a tuple")
    made: T = field(default=default, metadata=metadata)
    return made


knob = option  # its name in older files of users


class Options:
    """A base for the `Config` of an algorithm or a strategy, a frozen dataclass of options."""

    shares_parameters: ClassVar[bool] = True  # a strategy's: several learners are possible

    @property
    def hosted_processes(self) -> int:
        """A strategy's own processes, beside workers, actors and learners."""
        return 0

    @property
    def replay_demand(self) -> Demand | None:
        """What an algorithm draws from a replay memory; None: it uses none."""
        return None

    def check(self, plan: PlanView) -> None:
        """Raises BadRequest for values that do not fit the rest of the plan."""


def options_of(config: object) -> Options:
    """A user's `Config` may be a plain dataclass. It then has the defaults of all `Options`."""
    return config if isinstance(config, Options) else Options()


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
    first_action: int = 0  # the environment's own number for action 0
    raw: State = field(default_factory=dict)  # how its own observations are read (envs/)

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
    told: tuple[tuple[int, Mapping[str, float]], ...] = ()  # of ended lanes: their own numbers


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
    last_columns: Mapping[str, Array] | None = None  # [k, ...] of the last observations; else zeros


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
    after: Tensor  # [m >= 1, *obs] what followed the steps whose next step is not in this rollout
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
