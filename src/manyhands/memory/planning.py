"""Planning: every step is drawn once, then remembered outcomes at random (Dyna-Q, Sutton 1990).

The first draws after a step are its own transition: this is learning from the real step. The other
draws that are due are the newest outcomes of pairs of a state and an action, each pair equally
likely: this is planning with a model. Without further draws it is plain Q-learning.

It differs from Sutton and Barto (2018, section 8.2): they draw a state first and then one of the
actions tried there. The model holds what the lanes hold, so `memory.capacity` bounds what is
remembered. If another process records the steps, a step can be drawn once the next one is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from manyhands.memory import Config
from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.lanes import NONE, Lanes
from manyhands.memory.storage.outcomes import Outcomes
from manyhands.memory.storage.sampling import Sample, Sampler
from manyhands.types import Array, Demand, EnvSpec, Rows, State, restored


class Planning(Sampler):
    """Draws the rows that wait, then the newest rows of random pairs."""

    def __init__(self, lanes: Lanes, config: Config, rng: np.random.Generator) -> None:
        self.lanes, self.config, self._rng = lanes, config, rng
        self.outcomes = Outcomes(lanes)
        self._waiting = NONE  # rows that were not drawn yet

    def sample(
        self,
        demand: Demand,
        size: int,
        steps_seen: int,  # noqa: ARG002
        *,
        again: bool = False,
    ) -> Sample | None:
        outcomes = self.outcomes
        self._wait(outcomes.take_in(), demand)
        rows = NONE if again else self._waiting[:size]
        self._waiting = self._waiting[len(rows) :]
        if len(rows) < size:
            pairs = outcomes.known()
            if not pairs.size:
                return None
            drawn = pairs.take(self._rng.integers(len(pairs), size=size - len(rows)))
            rows = np.concatenate((rows, outcomes.newest.take(drawn)))
        return outcomes.sample(rows, demand.gamma)

    def _wait(self, fresh: Array, demand: Demand) -> None:
        """A learner that cannot keep up leaves out the oldest: they are drawn in planning."""
        if not fresh.size:
            return
        if self._waiting.size:
            held = self._waiting[self.outcomes.holds(self._waiting)]
            fresh = np.concatenate((held, fresh))
        self._waiting = fresh[-(self.lanes.spec.lanes + demand.batch_size) :]

    def state(self) -> State:
        return {**self.outcomes.state(), "waiting": self._waiting.copy()}

    def restore(self, state: State) -> None:
        self.outcomes.restore(state)
        self._waiting = NONE
        if state:
            like = np.zeros(len(state["waiting"]), np.int64)
            most = self.lanes.capacity - 1
            self._waiting = restored.between(state, "waiting", like, 0, most).copy()


class Planned(Replay):
    """A replay whose newest step can be drawn at once, where it records the steps itself."""

    def __init__(
        self,
        spec: EnvSpec,
        config: Config,
        *,
        columns: Mapping[str, str],
        rng: np.random.Generator,
        replay_lanes: ReplayLanes | None = None,
        planning: Callable[[Lanes, Config, np.random.Generator], Planning] = Planning,
    ) -> None:
        given = {"columns": columns, "rng": rng, "replay_lanes": replay_lanes}
        super().__init__(spec, config, sampler=planning, **given)  # type: ignore[arg-type]
        assert isinstance(self.sampler, Planning)
        self.planning = self.sampler

    def extend(self, rows: Rows) -> None:
        super().extend(rows)
        if self.drawn is self.lanes:
            ended = rows.ended if rows.broken is None else rows.ended | rows.broken
            self.lanes.preview(rows.next_frame, ended)
            self.planning.outcomes.previewed = True


def make(
    spec: EnvSpec,
    config: Config,
    *,
    demand: Demand | None = None,  # noqa: ARG001  (comes with every draw)
    columns: Mapping[str, str],
    rng: np.random.Generator,
    replay_lanes: ReplayLanes | None = None,
) -> Planned:
    return Planned(spec, config, columns=columns, rng=rng, replay_lanes=replay_lanes)
