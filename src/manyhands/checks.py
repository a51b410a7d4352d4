"""What makes no sense together: refused before any work starts, naming what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands import registry
from manyhands.types import BadRequest

if TYPE_CHECKING:
    from manyhands.config import Plan


def check(plan: Plan) -> None:
    _check_backend(plan)
    _check_roles(plan)
    _check_processes(plan)
    _check_device(plan)
    _check_copies(plan)
    _check_end(plan)
    _check_batch(plan)
    _check_pace(plan)


def _check_backend(plan: Plan) -> None:
    if registry.is_path(plan.top.backend):
        registry.load("backends", plan.top.backend)
    elif plan.backend not in registry.names("backends"):
        raise registry.unknown("--backend", plan.top.backend, registry.names("backends"))


def _check_roles(plan: Plan) -> None:
    top = plan.top
    others = ", ".join(name for name in registry.names("strategies") if name != "serial")
    if (top.learners > 1 or plan.sources.get("run.learners") == "flag") and not top.actors:
        raise BadRequest(
            f"--learners {top.learners} without --actors: somebody has to act",
            "add --actors N, or use --workers N, each of which acts and learns",
        )
    if top.strategy == "serial" and top.workers > 1 and not top.actors:
        raise BadRequest(
            f"--workers {top.workers} needs a strategy that shares parameters; serial has none",
            f"use --envs-per-worker for more environments in one worker, or --strategy {others}",
        )
    if top.strategy == "serial" and top.learners > 1:
        raise BadRequest(
            f"--learners {top.learners} need a strategy that shares parameters; serial has none",
            f"use --strategy {others}",
        )
    if top.actors and top.workers > 1:
        raise BadRequest(
            f"--workers {top.workers} and --actors {top.actors} were both given",
            "give one of them",
        )


def _check_processes(plan: Plan) -> None:
    backend = registry.load("backends", plan.backend)
    most = getattr(backend, "MOST_PROCESSES", None)
    processes = plan.hands + plan.hosted
    if most is not None and processes > most:
        raise BadRequest(
            f"{processes} processes are more than the {most} that {plan.backend} runs",
            "use fewer of --workers, --actors, --learners or shards, or --envs-per-worker for more "
            "environments in each",
        )


def _check_device(plan: Plan) -> None:
    if plan.backend == "processes" and plan.top.device != "cpu":
        raise BadRequest(
            f"--device {plan.top.device}: many processes share parameters in the machine's own "
            "memory, and compute there",
            "leave out --device, or train with one worker: --strategy serial --workers 1",
        )


def _check_copies(plan: Plan) -> None:
    """Only what was just asked for: a run that was made so may go on."""
    strategy = plan[registry.section_name(plan.top.strategy)]
    asked = plan.sources.get(f"{plan.top.strategy}.sync_every") == "flag"
    if asked and strategy.sync_every > 1 and not getattr(strategy, "copy", True):
        raise BadRequest(
            f"--{plan.top.strategy}.sync_every {strategy.sync_every}: there is no copy to be made "
            "anew",
            f"add --{plan.top.strategy}.copy true, or leave it out",
        )


def _check_end(plan: Plan) -> None:
    top = plan.top
    if plan.sources.get("run.steps") == "flag" and not top.steps:
        raise BadRequest("--steps 0 trains nothing", "give a number, or leave it out")
    if top.until_solved and top.threshold is None:
        raise BadRequest(
            f"{plan.task} has no threshold, so --until-solved cannot be judged",
            "give one with --threshold, or use --steps or --minutes",
        )
    explicit = {k for k in ("steps", "minutes") if plan.sources.get(f"run.{k}") == "flag"}
    if {"steps", "minutes"} <= explicit and top.steps and top.minutes:
        raise BadRequest("--steps and --minutes were both given", "give one of them")


def _check_batch(plan: Plan) -> None:
    algorithm, capacity = plan.algorithm, plan["memory"].capacity
    batch = getattr(algorithm, "batch_size", 0)
    warmup = getattr(algorithm, "warmup_steps", 0)
    if max(batch, warmup) > capacity:
        name, rows = ("batch_size", batch) if batch > capacity else ("warmup_steps", warmup)
        raise BadRequest(
            f"{name} {rows} is more than --memory.capacity {capacity} holds",
            f"raise --memory.capacity or lower --{_section(plan)}.{name}",
        )


def _check_pace(plan: Plan) -> None:
    """Actors wait for learners that are behind; these must then have something to learn."""
    # Those who wait for the steps of the same actors.
    together = 1 if plan["memory"].scope == "local" else plan.top.learners
    steps = getattr(plan.algorithm, "steps_per_update", 0) * together
    if plan.top.actors and plan["memory"].ahead_steps < steps:
        raise BadRequest(
            f"--memory.ahead_steps {plan['memory'].ahead_steps} would stop actors before the "
            f"{steps:g} steps of {together} update(s) are there: all would wait for ever",
            f"set it to {steps:g} or more, or lower --{_section(plan)}.steps_per_update",
        )


def _section(plan: Plan) -> str:
    return registry.section_name(plan.top.algorithm)
