"""How far a run is: its clocks, when something is due, and what is reported of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from manyhands import snapshots
from manyhands.metrics import PARTS_OF_TIME, MetricsFile
from manyhands.types import State

if TYPE_CHECKING:
    from manyhands.config import Plan
    from manyhands.crew import Crew
    from manyhands.evaluate import Evaluation

REPORT_PERIOD_S = 1.0
PSS_PERIOD_S = 10.0
LEARNING_PARTS = ("sample", "gradient", "pull", "push")


def resources(plan: Plan) -> int:
    """Threads of each process: the cores, dealt equally."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return plan.top.threads or max(1, (cores or 1) // plan.hands)


class Progress:
    """Everything here but `wall_s` and what is derived from it is a function of the seed."""

    def __init__(self, plan: Plan, crew: Crew) -> None:
        self.plan, self.crew = plan, crew
        self.failed = False
        self.breaks = 0  # environments that broke and were made anew
        self.notes: list[str] = []  # said once, at the start
        self.solved: dict[str, float] | None = None
        self.evaluation: dict[str, float] | None = None
        self.best_evaluation = -math.inf
        self.best_return_mean_100: float | None = None
        self._wall_before = 0.0
        self._rated = {"seconds": 0.0, "agent_steps": 0, "updates": 0}
        self._peak_pss_mb = 0.0
        self._mark: tuple[float, int, int] | None = None  # where the rated stretch began
        self._episodes_seen = 0
        self._next_evaluation = plan["evaluation"].period_steps or math.inf
        self._began = self._next_report = self._last_report = perf_counter()
        self._next_pss = self._next_checkpoint = 0.0
        self._next_snapshot = snapshots.FIRST
        self._reported = (0, 0)

    # --- The clock ------------------------------------------------------------------------------

    def begin(self) -> None:
        now = perf_counter()
        self._began = self._last_report = now
        self._next_report = now + REPORT_PERIOD_S
        self._next_pss = now
        self._next_snapshot = snapshots.next_due(self.crew.agent_steps)
        self._reported = (self.crew.agent_steps, self.crew.updates)
        minutes = self.plan["checkpoint"].period_minutes
        self._next_checkpoint = now + 60 * minutes if minutes else math.inf
        self.crew.begin()

    def wall_s(self) -> float:
        """Since the run began, earlier stretches included."""
        return self._wall_before + perf_counter() - self._began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Around what is not training."""
        self._close_rated()
        try:
            yield
        finally:
            self.crew.rest()

    def _close_rated(self) -> None:
        if self._mark is not None:
            since, steps, updates = self._mark
            self._rated["seconds"] += perf_counter() - since
            self._rated["agent_steps"] += self.crew.agent_steps - steps
            self._rated["updates"] += self.crew.updates - updates
            self._mark = None

    # --- After every turn -----------------------------------------------------------------------

    def turn(self) -> None:
        """Rates are taken from the first update on; solved is judged as episodes end."""
        crew = self.crew
        crew.look()
        if self._mark is None and crew.updates:
            self._mark = (perf_counter(), crew.agent_steps, crew.updates)
        if crew.scores.count != self._episodes_seen:
            self._episodes_seen = crew.scores.count
            self._judge()

    def _judge(self) -> None:
        scores, threshold = self.crew.scores, self.plan.top.threshold
        mean = scores.return_mean_100
        if mean is None or not scores.full:
            return
        best = self.best_return_mean_100
        self.best_return_mean_100 = mean if best is None else max(best, mean)
        if threshold is not None and mean >= threshold and self.solved is None:
            self.solved = {
                "threshold": threshold,
                "episodes": scores.count,
                "agent_steps": self.crew.agent_steps,
                "wall_s": self.wall_s(),
            }

    def over(self) -> bool:
        top = self.plan.top
        if top.until_solved and self.solved is not None:
            return True
        if top.minutes:
            return perf_counter() - self._began >= 60 * top.minutes
        return self.crew.agent_steps >= top.steps and self.crew.caught_up

    def share(self) -> float:
        """How much of the run is done."""
        top = self.plan.top
        if top.minutes:
            return min(1.0, (perf_counter() - self._began) / (60 * top.minutes))
        return min(1.0, self.crew.agent_steps / max(1, top.steps))

    def evaluation_due(self) -> bool:
        if self.crew.agent_steps < self._next_evaluation:
            return False
        period = self.plan["evaluation"].period_steps
        self._next_evaluation = (self.crew.agent_steps // period + 1) * period
        return True

    def evaluated(self, result: Evaluation) -> bool:
        """Whether it is the best so far."""
        self.evaluation = result.as_json()
        best = result.mean > self.best_evaluation
        self.best_evaluation = max(self.best_evaluation, result.mean)
        return best

    def checkpoint_due(self) -> bool:
        if perf_counter() < self._next_checkpoint:
            return False
        self._next_checkpoint = perf_counter() + 60 * self.plan["checkpoint"].period_minutes
        return True

    def snapshot_due(self) -> bool:
        if self.crew.agent_steps < self._next_snapshot:
            return False
        self._next_snapshot = snapshots.next_due(self.crew.agent_steps)
        return True

    def report_due(self) -> bool:
        return perf_counter() >= self._next_report

    # --- Reports --------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """What happened since the last report."""
        self._sample_pss()
        metrics = self._metrics()
        self._next_report = perf_counter() + REPORT_PERIOD_S
        return metrics

    def write(self, metrics: dict[str, Any], file: MetricsFile) -> None:
        """A row for every episode that ended, and one for all."""
        wall_s = self.wall_s()
        for episode in self.crew.scores.take_fresh():
            values = {
                "charts/episodic_return": episode.score,
                "charts/episodic_length": float(episode.length),
            }
            file.write(episode.agent_steps, wall_s, values)
        named = {k: v for k, v in metrics.items() if "/" in k}
        file.write(metrics["agent_steps"], wall_s, named)
        file.flush()

    def _metrics(self) -> dict[str, Any]:
        crew, now = self.crew, perf_counter()
        seconds = max(1e-9, now - self._last_report)
        steps, updates = crew.agent_steps, crew.updates
        rates = [
            (new - old) / seconds for new, old in zip((steps, updates), self._reported, strict=True)
        ]
        self._reported, self._last_report = (steps, updates), now
        mean = crew.scores.return_mean_100
        return {
            "agent_steps": steps,
            "updates": updates,
            "charts/SPS": rates[0],
            "charts/UPS": rates[1],
            "charts/episodes": crew.scores.count,
            "charts/epsilon": crew.algorithm.exploration(steps),
            **({} if mean is None else {"charts/return_mean_100": mean}),
            "memory_fill": crew.memory_fill(),
            "time_split": {role: _shares(spent) for role, spent in crew.time_split().items()},
            "faults": crew.faults(),
            **({"charts/environment_breaks": self.breaks} if self.breaks else {}),
            **crew.diagnostics(),
        }

    def _sample_pss(self) -> None:
        """The memory our processes really take; each counts its part of the pages they share."""
        if perf_counter() < self._next_pss and self._peak_pss_mb:
            return
        import psutil

        taken = 0
        for pid in {os.getpid(), *(who["pid"] for who in self.crew.staff())}:
            with suppress(psutil.Error):  # it may be gone, or not there yet
                info = psutil.Process(pid).memory_full_info()
                taken += getattr(info, "pss", info.uss)
        self._peak_pss_mb = max(self._peak_pss_mb, taken / 1e6)
        self._next_pss = perf_counter() + PSS_PERIOD_S

    def status(self, state: str) -> dict[str, Any]:
        crew = self.crew
        return {
            "state": state,
            "agent_steps": crew.agent_steps,
            "updates": crew.updates,
            "episodes": crew.scores.count,
            "return_mean_100": crew.scores.return_mean_100,
            "wall_s": self.wall_s(),
            "share_done": self.share(),
            "faults": crew.faults(),
            "environment_breaks": self.breaks,
            "workers": crew.staff(),
        }

    def summary(self, command: str, commit: str) -> dict[str, Any]:
        self._close_rated()
        self._sample_pss()
        self.crew.rest()
        top, crew = self.plan.top, self.crew
        seconds = self._rated["seconds"] or math.inf
        return {
            "task": self.plan.task,
            "env": self.plan["env"].id,
            "recipe": top.recipe,
            "algorithm": top.algorithm,
            "strategy": top.strategy,
            "backend": self.plan.backend,
            "workers": top.actors or top.workers,  # as --workers says where they act apart
            "actors": top.actors,
            "learners": top.learners,
            "seed": top.seed,
            "command": command,
            "commit": commit,
            "agent_steps": crew.agent_steps,
            "frames": crew.agent_steps * crew.spec.frames_per_step,
            "updates": crew.updates,
            "gradients": crew.gradients,
            "episodes": crew.scores.count,
            "wall_s": self.wall_s(),
            "agent_steps_per_s": self._rated["agent_steps"] / seconds,
            "updates_per_s": self._rated["updates"] / seconds,
            "return_mean_100": crew.scores.return_mean_100,
            "best_return_mean_100": self.best_return_mean_100,
            "evaluation": self.evaluation,
            "solved": self.solved,
            "staleness": crew.staleness(),
            "faults": crew.faults(),
            "time_split": crew.time_split(),
            "bottleneck": self.bottleneck(),
            "peak_pss_mb": self._peak_pss_mb,
        }

    def bottleneck(self) -> str:
        """The sentence that answers the oldest question."""
        split = self.crew.time_split()
        if "actor" in split:
            return _slower(split, self.plan.top.actors)
        roles = split.values()
        seconds = {part: sum(role[part] for role in roles) for part in PARTS_OF_TIME}
        learning = sum(seconds[part] for part in LEARNING_PARTS)
        acting = seconds["env"] + seconds["act"]
        share = max(learning, acting) / max(1e-9, sum(seconds.values()) - seconds["other"])
        if learning >= acting:
            return f"learner-bound: {share:.0%} of the time; more environments will not help"
        lanes = self.plan.top.envs_per_worker
        return f"environment-bound: {share:.0%} of the time; try --envs-per-worker {2 * lanes}"

    # --- What is said ---------------------------------------------------------------------------

    def opening_lines(self, threads: int) -> list[str]:
        top = self.plan.top
        spec, model = self.crew.spec, self.crew.model
        goal = f"{top.minutes:g} minutes" if top.minutes else f"{top.steps:,} agent steps"
        until = f", or solved at {top.threshold:g}" if top.until_solved else ""
        return [
            f"{self.plan.task} by {top.recipe}: {Path(top.algorithm).stem} x "
            f"{Path(top.strategy).stem}, {goal}{until}",
            f"{self._hands()}{spec.lanes} environment(s), {threads} thread(s), "
            f"{model.vector.device}, "
            f"{self.plan['network'].precision}, "
            f"{model.vector.numel():,} parameters, seed {top.seed}",
            self.crew.preflight,
            *self.notes,
        ]

    def _hands(self) -> str:
        """Who there is, if there are many."""
        top = self.plan.top
        if self.plan.alone:
            return ""
        shards = f" and {self.plan.hosted} shard(s)" if self.plan.hosted else ""
        if top.actors:
            return f"{top.actors} actor(s), {top.learners} learner(s){shards}, each with "
        return f"{top.workers} worker(s){shards}, each with "

    def closing_lines(self, path: Path) -> list[str]:
        crew = self.crew
        mean = crew.scores.return_mean_100
        solved = self.solved
        return [
            f"{crew.agent_steps:,} agent steps, {crew.updates:,} updates, "
            f"{crew.scores.count:,} episodes in {self.wall_s():.0f} s; "
            f"return of the last 100: {'none ended' if mean is None else f'{mean:.1f}'}",
            *(
                [f"solved after {solved['episodes']} episodes, {solved['wall_s']:.0f} s"]
                if solved
                else []
            ),
            self.bottleneck(),
            f"run: {path}",
        ]

    # --- Checkpoints ----------------------------------------------------------------------------

    def state(self) -> State:
        self._close_rated()
        best = self.best_evaluation
        return {
            "wall_s": self.wall_s(),
            "rated": dict(self._rated),
            "solved": self.solved,
            "evaluation": self.evaluation,
            "best_evaluation": None if best == -math.inf else best,
            "best_return_mean_100": self.best_return_mean_100,
            "next_evaluation": None if math.isinf(self._next_evaluation) else self._next_evaluation,
            "peak_pss_mb": self._peak_pss_mb,
            "breaks": self.breaks,
        }

    def restore(self, state: State) -> None:
        self._wall_before = float(state["wall_s"])
        self._rated = {name: float(state["rated"][name]) for name in self._rated}
        self.solved, self.evaluation = state["solved"], state["evaluation"]
        best, due = state["best_evaluation"], state["next_evaluation"]
        self.best_evaluation = -math.inf if best is None else best
        self.best_return_mean_100 = state["best_return_mean_100"]
        self._next_evaluation = math.inf if due is None else due
        self._peak_pss_mb = state["peak_pss_mb"]
        self.breaks = int(state.get("breaks", 0))
        self._episodes_seen = self.crew.scores.count


def _slower(split: dict[str, dict[str, float]], actors: int) -> str:
    """Of actors and learners, who keeps the other waiting."""
    waits = {role: _shares(spent)["idle"] for role, spent in split.items()}
    if waits["actor"] >= waits["learner"]:
        return f"learner-bound: actors wait {waits['actor']:.0%} of the time; more will not help"
    return (
        f"actor-bound: learners wait {waits['learner']:.0%} of the time; try --actors {2 * actors}"
    )


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    whole = sum(seconds.values()) or 1.0
    return {part: spent / whole for part, spent in seconds.items()}
