"""Evaluations of a run: those that are due while it trains, and those that its user asks for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from manyhands.config import plans
from manyhands.config.kept_code import as_it_began
from manyhands.roles.making import MakeEnv
from manyhands.runs import evaluate
from manyhands.runs.evaluate import Evaluation
from manyhands.runs.faults import FaultLog
from manyhands.runs.metrics import MetricsFile
from manyhands.runs.progress import Progress
from manyhands.runs.saving import Saving
from manyhands.runs.signals import StopRequests
from manyhands.types import Backend

SHOWN_PERIOD_S = 5.0  # at most one evaluation is shown in this time, and every new best


class Evaluator:
    """Plays in main's process. Meanwhile main still looks after its workers."""

    def __init__(
        self,
        progress: Progress,
        backend: Backend,
        *,
        saving: Saving,
        faults: FaultLog,
        stop: StopRequests,
        threads: int,
        make_env: MakeEnv | None,
        say: Callable[[str], None],
    ) -> None:
        self._progress, self._workers, self._backend = progress, progress.workers, backend
        self._saving, self._faults, self._stop = saving, faults, stop
        self._threads, self._make_env, self._say = threads, make_env, say
        self._next_shown_s = 0.0

    def periodic(self, metrics: MetricsFile) -> None:
        """Evaluates, saves the weights if they are the best, and reports. A stop ends it early."""
        steps, episodes = self._workers.agent_steps, self._workers.plan.evaluation.episodes
        with self._workers.newest(), suppress(evaluate.Interrupted):
            result = self._play(self.keep_playing, episodes=episodes)
            best = self._progress.evaluated(result, steps)
            if best and not self._faults.attempt("best", lambda: self._saving.best(steps)):
                self._progress.best_was_lost()
            self._report(metrics, steps, result, best=best)

    def _report(self, metrics: MetricsFile, steps: int, result: Evaluation, *, best: bool) -> None:
        wall_s = self._progress.wall_s()
        metrics.write(steps, wall_s, {"charts/evaluation_return": result.mean})
        if best or wall_s >= self._next_shown_s:
            self._next_shown_s = wall_s + SHOWN_PERIOD_S
            self._say(f"evaluation at {steps:,} steps: {result}")

    def on_request(self, *, episodes: int, epsilon: float | None, seed: int | None) -> Evaluation:
        with self._workers.newest():
            return self._play(self._attend, episodes=episodes, epsilon=epsilon, seed=seed)

    def _play(
        self,
        attend: Callable[[], bool],
        *,
        episodes: int,
        epsilon: float | None = None,
        seed: int | None = None,
    ) -> Evaluation:
        plan = self._workers.plan
        return evaluate.evaluate(
            self._plan_as_it_began(),
            self._workers.algorithm,
            episodes=episodes,
            epsilon=plan.evaluation.epsilon if epsilon is None else epsilon,
            seed=plan.top.seed if seed is None else seed,
            threads=self._threads,
            make_env=self._make_env,
            attend=attend,
        )

    def _plan_as_it_began(self) -> plans.Plan:
        plan = as_it_began(self._workers.plan)
        for note in (note for note in plan.notes if note not in self._progress.notes):
            self._progress.notes.append(note)
            self._say(note)
        return plan

    def _attend(self) -> bool:
        """Looks after the workers while main plays."""
        for fault in self._backend.attend():
            self._faults.note(fault)
        self._workers.look()
        return True

    def keep_playing(self) -> bool:
        """Looks after the workers; returns False once the run was asked to stop."""
        return self._attend() and not self._stop.asked
