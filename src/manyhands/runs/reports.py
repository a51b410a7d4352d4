"""The numbers of a run: metrics once a second, status.json, and summary.json at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from socket import gethostname
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from manyhands.roles import counters
from manyhands.runs import staleness
from manyhands.runs.metrics import MetricsFile

if TYPE_CHECKING:
    from manyhands.config.sections import Top
    from manyhands.runs.faults import FaultLog
    from manyhands.runs.progress import Progress
    from manyhands.runs.rundir import RunDir
    from manyhands.runs.workers import Workers

FOR_EVER = 10**18  # agent steps


class Reports:
    def __init__(self, progress: Progress, folder: RunDir, faults: FaultLog) -> None:
        self._progress, self._workers, self._plan = progress, progress.workers, progress.plan
        self._folder, self._faults = folder, faults
        # An algorithm that samples from its policy has exploration 1 for ever.
        self._has_epsilon = progress.workers.algorithm.exploration(FOR_EVER) < 1
        self._last_s = perf_counter()
        self._last_counts = (0, 0)  # agent steps, updates

    def begin(self) -> None:
        self._last_s = perf_counter()
        self._last_counts = (self._workers.agent_steps, self._workers.updates)

    def metrics(self) -> dict[str, Any]:
        """The values now, and the rates since the last call."""
        progress, workers = self._progress, self._workers
        progress.sample_memory()
        now = perf_counter()
        seconds = max(1e-9, now - self._last_s)
        steps, updates = workers.agent_steps, workers.updates
        old_steps, old_updates = self._last_counts
        self._last_counts, self._last_s = (steps, updates), now
        mean, imagined = workers.scores.return_mean_100, imagined_steps(workers)
        return {
            "agent_steps": steps,
            "updates": updates,
            "charts/SPS": (steps - old_steps) / seconds,
            "charts/UPS": (updates - old_updates) / seconds,
            "charts/episodes": workers.scores.count,
            **(
                {"charts/epsilon": workers.algorithm.exploration(steps)}
                if self._has_epsilon
                else {}
            ),
            **({} if mean is None else {"charts/return_mean_100": mean}),
            "evaluations": progress.take_evaluations(),
            "episode_metrics": _means([episode.told for episode in workers.scores.fresh]),
            "memory_fill": workers.memory_fill(),
            "time_split": {role: _shares(spent) for role, spent in workers.time_split().items()},
            "faults": workers.faults(),
            "nodes": workers.processes.by_node(),
            **({"charts/environment_breaks": progress.breaks} if progress.breaks else {}),
            **({"charts/imagined_steps": imagined} if imagined else {}),
            **workers.diagnostics(),
        }

    def write(self, metrics: dict[str, Any], file: MetricsFile) -> None:
        """Writes one row for each finished episode, and one for the whole run."""
        wall_s = self._progress.wall_s()
        for episode in self._workers.scores.take_fresh():
            values = {
                "charts/episodic_return": episode.score,
                "charts/episodic_length": float(episode.length),
                **{f"episode/{name}": value for name, value in episode.told.items()},
            }
            file.write(episode.agent_steps, wall_s, values)
        named = {k: v for k, v in metrics.items() if "/" in k}
        file.write(metrics["agent_steps"], wall_s, named)
        self._faults.attempt("metrics", file.flush)
        self._faults.attempt("faults", self._folder.faults.flush)

    def write_status(self, state: str) -> None:
        status = self._status(state)
        self._faults.attempt("status", lambda: self._folder.write_status(status))

    def _status(self, state: str) -> dict[str, Any]:
        progress, workers = self._progress, self._workers
        return {
            "state": state,
            "time": time(),
            "pid": os.getpid(),
            "host": gethostname(),
            "agent_steps": workers.agent_steps,
            "updates": workers.updates,
            "episodes": workers.scores.count,
            "return_mean_100": workers.scores.return_mean_100,
            "solved": progress.solved,
            "wall_s": progress.wall_s(),
            "share_done": progress.share(),
            "faults": workers.faults(),
            "environment_breaks": progress.breaks,
            "workers": workers.process_table(),
        }

    def summary(self, command: str, commit: str) -> dict[str, Any]:
        progress, workers, plan = self._progress, self._workers, self._plan
        steps_per_s, updates_per_s = progress.mean_rates()
        progress.sample_memory()
        top = plan.top
        return {
            "task": plan.task,
            "env": plan.env.id,
            "recipe": top.recipe,
            "algorithm": top.algorithm,
            "strategy": top.strategy,
            "backend": plan.backend,
            "workers": _workers(top),
            "actors": top.actors,
            "learners": top.learners,
            "nodes": workers.backend.nodes_used(),
            "seed": top.seed,
            "command": command,
            "commit": commit,
            "agent_steps": workers.agent_steps,
            "frames": workers.agent_steps * workers.spec.frames_per_step,
            "updates": workers.updates,
            "gradients": workers.gradients,
            "episodes": workers.scores.count,
            "wall_s": progress.wall_s(),
            "agent_steps_per_s": steps_per_s,
            "updates_per_s": updates_per_s,
            "return_mean_100": workers.scores.return_mean_100,
            "best_return_mean_100": progress.best_return_mean_100,
            "evaluation": progress.evaluation,
            "best_evaluation": progress.best,
            "solved": progress.solved,
            "staleness": staleness.summary(workers),
            "faults": workers.faults(),
            "time_split": workers.time_split(),
            "bottleneck": progress.bottleneck(),
            "peak_pss_mb": progress.memory.peak_mb,
            "imagined_steps": imagined_steps(workers),
            "model": _model(workers.diagnostics()),
        }


def _workers(top: Top) -> int:
    """As --workers counts them: separate actors, or the learners of a single actor."""
    return top.learners if top.single_actor else top.actors or top.workers


def imagined_steps(workers: Workers) -> int:
    """Steps that models of the world made up; agent steps do not count them."""
    return int(workers.counters.rows()[:, counters.IMAGINED].sum())


def _model(diagnostics: Mapping[str, float]) -> dict[str, float] | None:
    """What the algorithm said last of its model of the world; None: it has none."""
    prefix = "model/"
    told = {k.removeprefix(prefix): v for k, v in diagnostics.items() if k.startswith(prefix)}
    return told or None


def _means(episodes: list[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the episodes that report it."""
    names = dict.fromkeys(name for metrics in episodes for name in metrics)
    each = {name: [metrics[name] for metrics in episodes if name in metrics] for name in names}
    return {name: sum(values) / len(values) for name, values in each.items()}


def _shares(seconds: dict[str, float]) -> dict[str, float]:
    total = sum(seconds.values()) or 1.0
    return {part: spent / total for part, spent in seconds.items()}
