"""How far a run is: its clock, its rates, its best results, and whether it is over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from manyhands.runs.bottleneck import bottleneck
from manyhands.runs.peak_memory import PeakMemory
from manyhands.runs.schedule import Schedule
from manyhands.types import State, machine, restored

if TYPE_CHECKING:
    from manyhands.config.plans import Plan
    from manyhands.runs.evaluate import Evaluation
    from manyhands.runs.workers import Workers


def resources(plan: Plan) -> int:
    """The number of threads in each process: all processes share the cores equally."""
    return plan.top.threads or max(1, machine.cores() // plan.processes)


class Progress:
    """With one worker, only `wall_s`, the rates and the memory do not follow from the seed."""

    def __init__(self, plan: Plan, workers: Workers) -> None:
        self.plan, self.workers = plan, workers
        self.failed = False
        self.stopped = ""  # by a user's hook: why
        self.breaks = 0  # environments that failed and were replaced
        self.notes = list(plan.notes)  # shown once, at the start
        self.solved: dict[str, float] | None = None
        self.evaluation: dict[str, float] | None = None
        self._best: tuple[float, int | None] = (-math.inf, None)  # mean return, agent step
        self._best_before: tuple[float, int | None] = self._best
        self._fresh_evaluations: list[dict[str, Any]] = []  # since the last report
        self.best_return_mean_100: float | None = None
        self._wall_before = 0.0
        self._rated = {"seconds": 0.0, "agent_steps": 0, "updates": 0}
        self._rated_from: tuple[float, int, int] | None = None  # time, agent steps, updates
        self._episodes_seen = 0
        self._began = perf_counter()
        self.schedule = Schedule(plan)
        self.memory = PeakMemory()

    # --- The clock ------------------------------------------------------------------------------

    def begin(self) -> None:
        self._began = perf_counter()
        self.schedule.begin(self.workers.agent_steps)
        self.memory.begin()
        self.workers.begin()

    def wall_s(self) -> float:
        """Seconds of training, including those before the run was resumed."""
        return self._wall_before + perf_counter() - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work inside this block is not training: it does not count for the rates."""
        self._close_rated()
        yield

    def _close_rated(self) -> None:
        if self._rated_from is not None:
            since, steps, updates = self._rated_from
            self._rated["seconds"] += perf_counter() - since
            self._rated["agent_steps"] += self.workers.agent_steps - steps
            self._rated["updates"] += self.workers.updates - updates
            self._rated_from = None

    def mean_rates(self) -> tuple[float, float]:
        """Agent steps and updates per second, from the first update on, without pauses."""
        self._close_rated()
        seconds = self._rated["seconds"] or math.inf
        return self._rated["agent_steps"] / seconds, self._rated["updates"] / seconds

    def sample_memory(self) -> None:
        """Of processes on this machine."""
        self.workers.process_table()
        self.memory.sample(self.workers.processes.near)

    # --- After every turn -----------------------------------------------------------------------

    def turn(self) -> None:
        """Rates count from the first update on. `solved` is checked when an episode has ended."""
        workers = self.workers
        workers.look()
        if self._rated_from is None and workers.updates:
            self._rated_from = (perf_counter(), workers.agent_steps, workers.updates)
        if workers.scores.count != self._episodes_seen:
            self._episodes_seen = workers.scores.count
            self._judge()

    def _judge(self) -> None:
        scores, threshold = self.workers.scores, self.plan.top.threshold
        mean = scores.return_mean_100
        if mean is None or not scores.full:
            return
        best = self.best_return_mean_100
        self.best_return_mean_100 = mean if best is None else max(best, mean)
        if threshold is not None and mean >= threshold and self.solved is None:
            self.solved = {
                "threshold": threshold,
                "episodes": scores.count,
                "agent_steps": self.workers.agent_steps,
                "wall_s": self.wall_s(),
            }

    def over(self) -> bool:
        top = self.plan.top
        if self.stopped or (top.until_solved and self.solved is not None):
            return True
        if top.minutes:
            return perf_counter() - self._began >= 60 * top.minutes
        return self.workers.agent_steps >= top.steps and self.workers.caught_up

    def share(self) -> float:
        """How much of the run is done."""
        top = self.plan.top
        if top.minutes:
            return min(1.0, (perf_counter() - self._began) / (60 * top.minutes))
        return min(1.0, self.workers.agent_steps / max(1, top.steps))

    def evaluated(self, result: Evaluation, steps: int) -> bool:
        """Records an evaluation; returns whether it is the best so far."""
        self.evaluation = result.as_json()
        self._best_before, best = self._best, result.mean > self.best_evaluation
        if best:
            self._best = (result.mean, steps)
        self._fresh_evaluations.append({"agent_steps": steps, **result.as_json(), "best": best})
        return best

    def best_was_lost(self) -> None:
        """The best weights could not be saved, so they do not count as the best."""
        self._best = self._best_before

    def take_evaluations(self) -> list[dict[str, Any]]:
        fresh, self._fresh_evaluations = self._fresh_evaluations, []
        return fresh

    @property
    def best_evaluation(self) -> float:
        return self._best[0]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best evaluation: that of the weights in the folder `best`."""
        mean, steps = self._best
        return None if steps is None else {"agent_steps": steps, "mean": mean}

    def bottleneck(self) -> str:
        return bottleneck(
            self.workers.time_split(roles_of_now=True),
            updates=self.workers.updates,
            envs_per_worker=self.plan.top.envs_per_worker,
            actors=self.plan.top.actors,
            alone=self.plan.alone,
        )

    # --- Checkpoints ----------------------------------------------------------------------------

    def state(self) -> State:
        self._close_rated()
        best, best_step = self._best
        due = self.schedule.next_evaluation
        return {
            "wall_s": self.wall_s(),
            "rated": dict(self._rated),
            "solved": self.solved,
            "evaluation": self.evaluation,
            "best_evaluation": None if best == -math.inf else best,
            "best_step": best_step,
            "best_return_mean_100": self.best_return_mean_100,
            "next_evaluation": None if math.isinf(due) else due,
            "peak_pss_mb": self.memory.peak_mb,
            "breaks": self.breaks,
        }

    def restore(self, state: State) -> None:
        self._wall_before = restored.number(state, "wall_s", least=0)
        self._rated = restored.numbers(state["rated"], self._rated, least=0)
        keys = ("threshold", "episodes", "agent_steps", "wall_s")
        self.solved = restored.numbers_or_none(state, "solved", keys)
        parts = ("episodes", "mean", "std")
        self.evaluation = restored.numbers_or_none(state, "evaluation", parts)
        best = restored.number_or_none(state, "best_evaluation")
        step = restored.number_or_none({"best_step": None, **state}, "best_step")
        self._best = (-math.inf if best is None else best, None if step is None else int(step))
        self.best_return_mean_100 = restored.number_or_none(state, "best_return_mean_100")
        due = restored.number_or_none(state, "next_evaluation")
        self.schedule.restore(due, self.workers.agent_steps)
        self.memory.peak_mb = restored.number(state, "peak_pss_mb", least=0)
        self.breaks = restored.count({"breaks": 0, **state}, "breaks")
        self._episodes_seen = self.workers.scores.count
