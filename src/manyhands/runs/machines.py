"""Where a run runs: makes its backend, and tells it what the run needs of the machines."""

from __future__ import annotations

import sys
from functools import partial

from manyhands import memory
from manyhands.config import precision, registry
from manyhands.config.plans import Plan
from manyhands.roles.process_setup import IMPORTS
from manyhands.types import AnyDemand, Backend
from manyhands.types.needs import Needs, ProcessNeed

ALWAYS = ("torch", "numpy", "gymnasium")
WHERE_USED = {"ale-py": "ale_py", "box2d": "Box2D"}  # library -> module
BYTES = 4  # of a parameter
COPIES = 4  # of the parameters: the optimizer has two, and there is a target network


def make_backend(plan: Plan) -> Backend:
    options = {} if plan.place is None else {"options": plan.place}
    file = registry.backend(plan.backend)
    return file.make(plan.top.seed, hang_s=plan.top.hang_s, imports=IMPORTS, **options)


def needs_of(plan: Plan, memory_bytes: int, parameters: int, demand: AnyDemand) -> Needs:
    """`memory_bytes`: of all replays. Call it after an environment was made here.

    A replay on another node has a copy on main's node, for checkpoints.
    """
    top, vector_bytes = plan.top, BYTES * parameters
    together = _why_together(plan, memory.kind_of(plan.memory, demand))
    staying = ProcessNeed("worker", top.workers if together else 1)
    each_bytes = memory_bytes // max(1, top.workers) + COPIES * vector_bytes
    others = ProcessNeed("worker", top.workers - staying.count, True, each_bytes)
    apart = ProcessNeed("actor", top.actors, anywhere=True), ProcessNeed("learner", top.learners)
    return Needs(
        processes=apart if top.actors else (staying, others),
        together=together or "the other workers use what they have",
        hosted=(ProcessNeed("shard", plan.hosted),),
        memory_bytes=memory_bytes + COPIES * vector_bytes,
        message_bytes=vector_bytes,
        libraries=(*ALWAYS, *(name for name, file in WHERE_USED.items() if file in sys.modules)),
        trial=partial(problem, plan.network.precision) if _is_reduced(plan) else None,
    )


def _why_together(plan: Plan, kind: str) -> str:
    """Why the learners share one node. Empty: all but the first worker, which keeps the state for
    processes that start later, may be elsewhere. `kind`: of their memories.
    """
    strategy = f"--strategy {plan.top.strategy}"
    *names, last = registry.between_nodes()
    others = f"on several nodes use --strategy {', '.join(names)} or {last}"
    if plan.top.actors:
        return "they share memory"
    if plan.strategy.one_vector:
        return f"with {strategy} they share one vector; {others}"
    if plan.top.strategy not in registry.between_nodes():
        return f"they share memory; {others}"
    if not plan.strategy.has_islands and plan.strategy.sharing.sends == "nothing":
        return f"these options of {strategy} need memory that all share"
    if plan.memory.scope == "global":
        return "they draw from one replay (--memory.scope global)"
    if kind == "prioritized":
        return "their priorities are in memory that all share (--memory.kind prioritized)"
    return ""


def _is_reduced(plan: Plan) -> bool:
    return plan.network.precision == "bfloat16"


def problem(dtype: str) -> str:
    """Why this machine cannot compute in a precision; empty if it can."""
    return f"it forbids {dtype}" if precision.forbidden() else ""
