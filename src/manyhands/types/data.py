"""Plain data: option fields, then the data path from an environment's step to the losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from operator import methodcaller, mul
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.types.communication import Sharing
    from manyhands.types.protocols import PlanView
T = TypeVar("T")
Array = NDArray[Any]
State = dict[str, Any]
"""What a checkpoint holds of an object: a tree of dicts whose leaves are JSON values or arrays."""
A_LITTLE = 1e-9  # so that 3 / (1 / 75) earns 225 updates
VALUES = frozenset({"q_taken", "q_best"})  # columns: the actor's Q-values
FIRST_STEP = ("first_reward", "first_discount", "first_next")  # columns, without gamma


def option(
    default: T,
    doc: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> T:
    """A dataclass field with a text and a range: ``low <= x <= high``, ``above < x``."""
    metadata = {"doc": doc, "low": low, "above": above, "high": high, "choices": tuple(choices)}
    if isinstance(default, list | dict):
        raise TypeError("an option's default is immutable: use a tuple")
    return field(default=default, metadata=metadata)


class Options:
    """A base for the `Config` of an algorithm or a strategy, a frozen dataclass of options."""

    shares_parameters: ClassVar[bool] = True  # for a strategy: several learners are possible
    in_step: ClassVar[bool] = False  # for a strategy: all learners make the same updates
    one_vector: ClassVar[bool] = False  # for a strategy: all learners change the same memory
    has_islands: ClassVar[bool] = False  # for a strategy: `--island-size` matters
    uses_torso: ClassVar[bool] = True  # for an algorithm: section `network` matters

    @property
    def hosted_processes(self) -> int:
        """How many processes a strategy starts, besides workers, actors and learners."""
        return 0

    @property
    def sharing(self) -> Sharing:
        """A strategy's, for `manyhands plan`; by default no learner waits for another."""
        from manyhands.types.communication import Sharing

        return Sharing(in_step=self.in_step)

    @property
    def replay_demand(self) -> Demand | None:
        """What an algorithm draws from a replay memory; None: it uses none."""
        return None

    @property
    def needs_simulator(self) -> bool:
        """An algorithm's: whether it asks the true simulator what would follow an action."""
        return False

    @property
    def imagined_capacity(self) -> int:
        """An algorithm's: how many imagined steps all learners keep together; 0: none."""
        return 0

    @property
    def imagined_at_once(self) -> int:
        """How many of them a learner adds at once, at most."""
        return 0

    @property
    def epsilon_spread(self) -> float:
        """An algorithm's: how much environments differ in exploration (Ape-X); 0: not at all."""
        return 0.0

    def check(self, plan: PlanView) -> None:
        """Raises BadRequest for values that do not fit the rest of the plan."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What the other rooms need to know about an environment."""

    id: str
    lanes: int  # environments stepped at once
    frame_shape: tuple[int, ...]
    frame_dtype: str  # "uint8", "float32", or "int32" if the observations are discrete
    stack: int  # frames in an observation; 1: a frame is an observation
    actions: int
    frames_per_step: int = 1
    first_action: int = 0  # the environment's own number for action 0
    raw: State = field(default_factory=dict)  # how observations become frames (envs/)
    counts: tuple[int, ...] = ()  # discrete: how many values each number of a frame has

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.stack, *self.frame_shape) if self.stack > 1 else self.frame_shape

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What a network gets: discrete observations are one-hot."""
        return (sum(self.counts),) if self.counts else self.observation_shape

    @property
    def states(self) -> int:
        """How many discrete observations there are; 0: they are not discrete."""
        return prod(self.counts) if self.counts else 0

    @property
    def strides(self) -> tuple[int, ...]:
        """The index of a discrete observation in a table is its numbers times these."""
        return tuple(accumulate(self.counts[:0:-1], mul, initial=1))[::-1] if self.counts else ()


class Break(NamedTuple):
    """Environments that raised or returned NaN, and were replaced."""

    lanes: tuple[int, ...]
    cause: str
    detail: str  # the traceback


class Step(NamedTuple):
    """What one step of n environments returned.

    In a lane that broke, the step is unknown: reward 0, discount 1, not ended. The observation
    is the first one of a new environment.
    """

    observation: Array  # [n, *obs] to act on next; where `ended`, a new episode's first
    reward: Array  # [n] float32, raw
    discount: Array  # [n] float32; 0: terminated, or a life lost (env.life_loss); else 1
    ended: Array  # [n] bool; the episode is over, terminated or truncated
    last: Array  # [k, *obs] the true last observations of the k episodes that ended, by lane
    broken: tuple[Break, ...] = ()
    told: tuple[tuple[int, Mapping[str, float]], ...] = ()  # by lane: own metrics


class Rows(NamedTuple):
    """One step of all lanes, as the memory stores it. An episode's end adds a row."""

    frame: Array  # [n, *frame] the newest frame of the observation acted on
    action: Array  # [n] int32
    reward: Array  # [n] float32, as learned from (clipped or scaled)
    discount: Array  # [n] float32
    first: Array  # [n] bool; this observation began an episode
    ended: Array  # [n] bool
    last_frame: Array  # [k, *frame] the newest frames of the true last observations
    next_frame: Array  # [n, *frame] the newest frames of the observations to act on next
    columns: Mapping[str, Array]  # [n, ...] each; what `act` returned beside the actions
    broken: Array | None = None  # [n] bool; the step is unknown; the next row is `first`
    last_columns: Mapping[str, Array] | None = None  # [k, ...] for `last_frame`; None: zeros


@dataclass(slots=True)
class Batch:
    """What a gradient is computed from. Valid until the next draw, which reuses its buffers."""

    observation: Tensor  # [b, *obs]
    action: Tensor  # [b] int64
    reward: Tensor  # [b] float32; the n-step sum
    discount: Tensor  # [b] float32; factor of the bootstrap, gamma included
    next_observation: Tensor  # [b, *obs]; empty if `targets` has used it
    weight: Tensor  # [b] float32; importance weights; 1 in uniform draws
    rows: Array  # [b] int64; row ids in the memory, for `report`
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    def plus(self, **columns: Tensor) -> Batch:
        """With more columns."""
        return Batch(
            self.observation, self.action, self.reward, self.discount, self.next_observation,
            self.weight, self.rows, {**self.columns, **columns},
        )  # fmt: skip

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
    discount: Tensor  # [t, n] float32; gamma included; 0: nothing follows
    ended: Tensor  # [t, n] bool; the next step is another episode's
    after: Tensor  # [m >= 1, *obs] next observations that are not in this rollout
    after_at: Tensor  # [m] int64; the steps before them, as t * n + lane
    columns: Mapping[str, Tensor]  # [t, n, ...] each; from `act` and `targets`

    def to(self, device: Any) -> Rollout:
        """Itself on the CPU, a copy elsewhere."""
        return self if str(device) == "cpu" else self._map(methodcaller("to", device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Rollout:
        names = ("action", "reward", "discount", "ended", "after", "after_at")
        columns = {name: change(column) for name, column in self.columns.items()}
        return replace(self, columns=columns, **{n: change(getattr(self, n)) for n in names})


@dataclass(frozen=True, slots=True)
class Demand:
    """What an algorithm needs from a replay memory."""

    memories: ClassVar[tuple[str, ...]] = ("replay", "prioritized")
    batch_size: int
    steps_per_update: float
    warmup_steps: int
    n_step: int
    gamma: float
    first_step: bool = False  # batches also have `FIRST_STEP`: what followed the first action

    def updates_due(self, steps: int) -> int:
        """How many updates are due in all after so many agent steps. Negative in the warm-up."""
        return math.floor((steps - self.warmup_steps) / self.steps_per_update + A_LITTLE)

    def steps_for(self, updates: int) -> float:
        """After how many agent steps so many updates are due."""
        return self.warmup_steps + updates * self.steps_per_update


@dataclass(frozen=True, slots=True)
class PlanningDemand(Demand):
    """What a tabular algorithm needs: every step once, then steps that a model remembers."""

    memories: ClassVar[tuple[str, ...]] = ("planning", "sweeping", "replay", "prioritized")


@dataclass(frozen=True, slots=True)
class RolloutDemand:
    """What an algorithm needs from a rollout memory: the newest steps, used once."""

    memories: ClassVar[tuple[str, ...]] = ("rollout",)
    steps: int  # per lane
    epochs: int  # passes over a rollout
    minibatches: int  # per epoch
    gamma: float


@dataclass(frozen=True, slots=True)
class QueueDemand:
    """What an algorithm needs from a queue: whole rollouts, in order, from all actors."""

    memories: ClassVar[tuple[str, ...]] = ("queue",)
    steps: int  # per lane in a rollout
    batch_rollouts: int  # rollouts in a batch
    slots: int  # rollouts of one actor that may queue; then the actor waits
    gamma: float
    again: int = 0  # how often a batch may be repeated while no other waits

    def batch_steps(self, lanes: int) -> int:
        return self.steps * lanes * self.batch_rollouts


Experience = TypeVar("Experience", Batch, Rollout)
AnyDemand = Demand | RolloutDemand | QueueDemand


class Losses(NamedTuple):
    """One part's losses. The learner weights and averages them.

    `backward` takes the weight of every sample in the average, and adds the gradient of that
    average to the model's. Without it, autograd follows the graph of `per_sample`.
    """

    part: str
    per_sample: Tensor  # [b]
    priorities: Tensor  # [b] |TD error|, not the Huber loss; detached
    diagnostics: Mapping[str, Tensor]  # scalars, detached
    backward: Callable[[Tensor], None] | None = None
    replaces: bool = False  # whether `backward` writes all gradients of the part: no need to clear

    def differentiate(self, loss: Tensor, weight: Tensor) -> None:
        """Adds the gradient of `loss`, the sum of the losses with these weights, to the model's."""
        if self.backward is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.backward(weight)
