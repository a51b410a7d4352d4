"""The lines that a run shows at its start and at its end."""

from __future__ import annotations

from pathlib import Path

from manyhands.config.plans import Plan
from manyhands.runs.progress import Progress
from manyhands.viewing.display import score_text


def headline(plan: Plan) -> str:
    """What is trained and for how long. It is shown before anything is made."""
    top = plan.top
    goal = f"{top.minutes:g} minutes" if top.minutes else f"{top.steps:,} agent steps"
    until = f", or solved at {top.threshold:g}" if top.until_solved else ""
    parts = f"{Path(top.algorithm).stem} x {Path(top.strategy).stem}"
    return f"{plan.task} by {top.recipe}: {parts}, {goal}{until}"


def opening_lines(progress: Progress, threads: int) -> list[str]:
    plan, workers = progress.plan, progress.workers
    top, vector = plan.top, workers.model.vector
    return [
        f"{_processes(plan)}{workers.spec.lanes} environment(s), {threads} thread(s), "
        f"{vector.device}, {plan.network.precision}, {vector.numel():,} parameters, "
        f"seed {top.seed}",
        workers.preflight,
        *([note] if (note := workers.spec.raw.get("note")) else []),
        *progress.notes,
    ]


def _processes(plan: Plan) -> str:
    """How many processes there are, if more than one."""
    top = plan.top
    if plan.alone:
        return ""
    shards = f" and {plan.hosted} shard(s)" if plan.hosted else ""
    if top.actors:
        return f"{top.actors} actor(s), {top.learners} learner(s){shards}, each with "
    return f"{top.workers} worker(s){shards}, each with "


def closing_lines(progress: Progress, path: Path) -> list[str]:
    workers, scores = progress.workers, progress.workers.scores
    mean, of = scores.return_mean_100, f"of the last {scores.recent}"
    return [
        f"{workers.agent_steps:,} agent steps, {workers.updates:,} updates, "
        f"{scores.count:,} episodes in {progress.wall_s():.0f} s; "
        + ("none ended" if mean is None else f"return {of}: {score_text(mean)}"),
        *_solved(progress),
        progress.bottleneck(),
        f"run: {path}",
        *_best(progress, path),
    ]


def _best(progress: Progress, path: Path) -> list[str]:
    """Which checkpoint is the best, and how to play it."""
    best, evaluated = progress.best, progress.evaluation
    if best is None or evaluated is None:
        return []
    newest = f"; the newest evaluation: {score_text(evaluated['mean'])}"
    score = f"{score_text(best['mean'])} over {evaluated['episodes']} episodes"
    less = newest if evaluated["mean"] < best["mean"] else ""
    return [
        f"best checkpoint: step {best['agent_steps']:,} with {score}{less}",
        f"play it with: manyhands watch {path} --best",
    ]


def run_text(progress: Progress, path: Path) -> str:
    """The text of a run in a notebook."""
    top, workers = progress.plan.top, progress.workers
    mean = workers.scores.return_mean_100
    score = "no episode ended" if mean is None else f"return {score_text(mean)}"
    steps = f"{workers.agent_steps:,}" + ("" if top.minutes else f" of {top.steps:,}")
    return f"<Run of {progress.plan.task} by {top.recipe}: {steps} agent steps, {score}, in {path}>"


def _solved(progress: Progress) -> list[str]:
    """Whether it is solved. If not, that is shown only with --until-solved."""
    top, solved = progress.plan.top, progress.solved
    if solved:
        return [f"solved after {solved['episodes']} episodes, {solved['wall_s']:.0f} s"]
    if not top.until_solved:
        return []
    best = progress.best_return_mean_100
    seen = "100 episodes have not ended yet" if best is None else f"best {score_text(best)}"
    return [f"not solved: the mean of 100 episodes has not reached {top.threshold:g}; {seen}"]
