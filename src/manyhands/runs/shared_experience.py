"""The experience that processes share: replay lanes, queues of rollouts, imagined steps."""

from __future__ import annotations

from typing import Any

from manyhands import memory
from manyhands.config.plans import Plan
from manyhands.memory.queue import Queues
from manyhands.memory.storage import imagined
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles import pacing
from manyhands.types import Algorithm, Backend, BadRequest, Demand, EnvSpec, QueueDemand, Stream


def make(
    plan: Plan, backend: Backend, spec: EnvSpec, algorithm: Algorithm
) -> SharedLanes | Queues | None:
    """None: each worker keeps its own rollout, and loses it if it dies.

    A replay is in shared memory, so a restarted worker finds it.
    """
    demand, apart = algorithm.demand, plan.top.actors > 0
    acting = plan.top.actors or plan.top.workers
    given: dict[str, Any] = {
        "members": acting,
        "columns": algorithm.remembers,
        "backend": backend,
    }
    if isinstance(demand, Demand):
        _refuse_too_few_actors(plan, demand)
        rows = memory.rows_per_lane(spec, max(1, plan.memory.capacity // acting))
        prioritized = _processes_read(plan, demand, acting)
        kept = not apart and plan.memory.scope == "local"
        return SharedLanes(spec, rows, prioritized=prioritized, kept=kept, **given)
    if isinstance(demand, QueueDemand) and apart:
        _refuse_too_few_actors(plan, demand)
        return Queues(spec, demand, learners=plan.top.learners, **given)
    if apart:
        raise BadRequest(
            f"{plan.top.algorithm} learns only from its own newest experience, so it cannot use "
            "--actors",
            "use --workers N with a strategy that shares parameters",
        )
    return None


def make_imagined(plan: Plan, backend: Backend, spec: EnvSpec) -> Stream | None:
    """What learners in their own processes imagine. None: they imagine nothing."""
    algorithm, top = plan.algorithm, plan.top
    if not (algorithm.imagined_capacity and top.actors):
        return None
    return imagined.share(
        spec, algorithm.imagined_capacity, learners=top.learners,
        at_once=algorithm.imagined_at_once, backend=backend,
    )  # fmt: skip


def _processes_read(plan: Plan, demand: Demand, acting: int) -> list[range]:
    """For each learner that draws by priority: the processes that record its rows."""
    if memory.kind_of(plan.memory, demand) != "prioritized":
        return []
    if plan.top.actors:
        each = pacing.pairings(plan)
        return [pairing.actors for pairing in each for _ in pairing.learners]
    if plan.memory.scope == "global":
        return [range(acting)] * acting
    return [range(worker, worker + 1) for worker in range(acting)]


def _refuse_too_few_actors(plan: Plan, demand: Demand | QueueDemand) -> None:
    """Unless learners share one replay, each needs its own actor."""
    top, shared = plan.top, plan.memory.scope == "global"
    if not top.actors or top.learners <= top.actors:
        return
    if isinstance(demand, Demand) and shared:
        return
    raise BadRequest(
        f"--learners {top.learners}, --actors {top.actors}: each learner needs an actor",
        f"use --actors {top.learners} or more, or a replay with --memory.scope global",
    )
