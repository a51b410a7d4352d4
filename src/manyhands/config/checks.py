"""Refuses options that do not fit together, before any work starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyhands import memory
from manyhands.config import registry
from manyhands.networks.config import TORSOS
from manyhands.types import BadRequest, machine, users_files

if TYPE_CHECKING:
    from manyhands.config.plans import Plan

FEW_THREADS = 16  # allowed on any machine, for a result of a larger one
THREADS_OF_A_CORE = 4
LEAST_HANG_S = 2.0


def check(plan: Plan) -> None:
    _check_roles(plan)
    _check_processes(plan)
    _check_typed(plan)
    _check_network(plan)
    _check_device(plan)
    _check_end(plan)
    _check_replay(plan)
    plan.algorithm.check(plan)
    plan.strategy.check(plan)


def _check_backend(plan: Plan) -> None:
    if users_files.is_path(plan.top.backend):
        registry.load("backends", plan.top.backend)
    elif plan.backend not in registry.names("backends"):
        raise registry.unknown("--backend", plan.top.backend, registry.names("backends"))


def cpu_only(plan: Plan) -> bool:
    """Whether the backend's workers share parameters in main memory. Refuses unknown backends."""
    _check_backend(plan)
    return registry.backend(plan.backend).CPU_ONLY


def _check_roles(plan: Plan) -> None:
    top = plan.top
    others = ", ".join(name for name in registry.names("strategies") if name != top.strategy)
    if (top.learners > 1 or plan.sources.get("run.learners") == "flag") and not top.actors:
        raise BadRequest(
            f"--learners {top.learners} without --actors: no process would act",
            "add --actors N, or use --workers N, each of which acts and learns",
        )
    if top.single_actor and top.actors > 1:
        raise BadRequest(
            f"--actors {top.actors}: this recipe has one environment, which one process steps",
            "use --learners N for more processes, or --single-actor false",
        )
    shares = plan.strategy.shares_parameters
    if not shares and top.workers > 1 and not top.actors:
        raise BadRequest(
            f"--workers {top.workers} needs a strategy that shares parameters; "
            f"{top.strategy} does not",
            f"use --envs-per-worker for more environments in one worker, or --strategy {others}",
        )
    if not shares and top.learners > 1:
        raise BadRequest(
            f"--learners {top.learners} needs a strategy that shares parameters; "
            f"{top.strategy} does not",
            f"use --strategy {others}",
        )
    if not plan.strategy.has_islands and plan.sources.get("run.island_size") == "flag":
        raise BadRequest(
            f"--island-size {top.island_size}: with --strategy {top.strategy} there are no islands",
            f"use --strategy {' or '.join(registry.with_islands())}, or leave it out",
        )
    if top.actors and top.workers > 1:
        raise BadRequest(
            f"--workers {top.workers} and --actors {top.actors} were both given",
            "give one of them",
        )


def _check_processes(plan: Plan) -> None:
    most = registry.backend(plan.backend).MOST_PROCESSES
    processes = plan.processes + plan.hosted
    if most is not None and processes > most:
        raise BadRequest(
            f"{processes} processes are more than the {most} that {plan.backend} runs",
            "use fewer processes, or --envs-per-worker for more environments in each",
        )


def _check_typed(plan: Plan) -> None:
    """Only values that were just given: a run of a larger machine, or an older one, keeps its own,
    since results depend on the number of threads.
    """
    top = plan.top
    typed = {name for name in vars(top) if plan.sources.get(f"run.{name}") == "flag"}
    most = max(FEW_THREADS, THREADS_OF_A_CORE * machine.cores())
    if "threads" in typed and top.threads > most:
        raise BadRequest(
            f"--threads {top.threads} is too much for {machine.cores()} cores",
            f"give at most {most}, or leave it out; more threads than cores are slower",
        )
    if "hang_s" in typed and top.hang_s < LEAST_HANG_S:
        raise BadRequest(
            f"--hang-s {top.hang_s:g} is too short: processes report every half second",
            f"give at least {LEAST_HANG_S:g}",
        )
    if "single_actor" in typed and top.single_actor and not top.actors:
        raise BadRequest(
            "--single-actor has no effect: in this run workers both act and learn",
            "add --actors 1 --learners N, or leave it out",
        )


def _check_network(plan: Plan) -> None:
    """A network that was just given: another one may be replaced by the caller's."""
    torso = plan.network.torso
    if plan.sources.get("network.torso") != "flag" or torso == "auto":
        return
    if users_files.is_path(torso):
        users_files.read(Path(torso.partition(":")[0]))
    elif torso not in TORSOS:
        raise registry.unknown("--network.torso", torso, [*TORSOS, "auto"])


def _check_device(plan: Plan) -> None:
    if cpu_only(plan) and plan.top.device != "cpu":
        raise BadRequest(
            f"--device {plan.top.device}: many processes share parameters in main memory and "
            "compute on the CPU",
            "leave out --device, or train with one worker: --strategy serial --workers 1",
        )


def _check_end(plan: Plan) -> None:
    top = plan.top
    if plan.sources.get("run.steps") == "flag" and not top.steps:
        raise BadRequest("--steps 0 trains nothing", "give a number, or leave it out")
    if top.until_solved and top.threshold is None:
        raise BadRequest(
            f"{plan.task} has no threshold, so --until-solved cannot be checked",
            "give one with --threshold, or use --steps or --minutes",
        )
    explicit = {k for k in ("steps", "minutes") if plan.sources.get(f"run.{k}") == "flag"}
    if {"steps", "minutes"} <= explicit and top.steps and top.minutes:
        raise BadRequest("--steps and --minutes were both given", "give one of them")


def _check_replay(plan: Plan) -> None:
    """Refuses a memory that is too small for what the algorithm draws from it."""
    options = plan.algorithm
    if (demand := options.replay_demand) is None:
        return
    _refuse_uneven_learners(plan, memory.kind_of(plan.memory, demand))
    capacity, ahead = plan.memory.capacity, plan.memory.ahead_steps
    for name, rows in (("batch_size", demand.batch_size), ("warmup_steps", demand.warmup_steps)):
        if rows > capacity:
            raise BadRequest(
                f"{name} {rows} is more than --memory.capacity {capacity} holds",
                f"raise --memory.capacity or lower {plan.flag(options, name)}",
            )
    # Actors wait for slow learners. Learners with a common memory share the actors' steps.
    sharing = 1 if plan.memory.scope == "local" else plan.top.learners
    steps = demand.steps_per_update * sharing
    if plan.top.actors and ahead < steps:
        raise BadRequest(
            f"--memory.ahead_steps {ahead} stops actors before the {steps:g} steps that "
            f"{sharing} update(s) need: all would wait for ever",
            f"set it to {steps:g} or more, or lower {plan.flag(options, 'steps_per_update')}",
        )


def _refuse_uneven_learners(plan: Plan, kind: str) -> None:
    """A memory that may leave out updates would stall learners that wait for each other."""
    learners = plan.top.learners if plan.top.actors else plan.top.workers
    leaves_out = getattr(registry.load("memory", kind), "LEAVES_OUT_UPDATES", False)
    if leaves_out and plan.strategy.in_step and learners > 1:
        raise BadRequest(
            f"--memory.kind {kind} leaves out updates, but with --strategy {plan.top.strategy} "
            "all learners make the same ones",
            "use --strategy hogwild, or --memory.kind planning",
        )
