"""Where a run runs: makes its backend, and tells it what the run needs of the machines."""

from __future__ import annotations

import sys
from functools import partial

from manyhands.config import precision, registry
from manyhands.config.plans import Plan
from manyhands.roles.process_setup import IMPORTS
from manyhands.types import Backend
from manyhands.types.needs import Needs, ProcessNeed

ALWAYS = ("torch", "numpy", "gymnasium")
WHERE_USED = {"ale-py": "ale_py", "box2d": "Box2D"}  # library -> module
BYTES = 4  # of a parameter
COPIES = 4  # of the parameters: the optimizer has two, and there is a target network


def make_backend(plan: Plan) -> Backend:
    options = {} if plan.place is None else {"options": plan.place}
    file = registry.backend(plan.backend)
    return file.make(plan.top.seed, hang_s=plan.top.hang_s, imports=IMPORTS, **options)


def needs_of(plan: Plan, memory_bytes: int, parameters: int) -> Needs:
    """`memory_bytes`: of all replays. Call it after an environment was made here."""
    top, vector_bytes = plan.top, BYTES * parameters
    acting = ProcessNeed("actor", top.actors, anywhere=True), ProcessNeed("learner", top.learners)
    return Needs(
        processes=acting if top.actors else (ProcessNeed("worker", top.workers),),
        together=_why_together(plan),
        hosted=(ProcessNeed("shard", plan.hosted),),
        memory_bytes=memory_bytes + COPIES * vector_bytes,
        message_bytes=vector_bytes,
        libraries=(*ALWAYS, *(name for name, file in WHERE_USED.items() if file in sys.modules)),
        trial=partial(problem, plan.network.precision) if _is_reduced(plan) else None,
    )


def _why_together(plan: Plan) -> str:
    """Why the learners share one node."""
    strategy = f"--strategy {plan.top.strategy}"
    if plan.strategy.has_islands:
        return f"islands ({strategy}) are on one node so far"
    if plan.strategy.one_vector:
        others = " and ".join(registry.with_islands())
        return f"with {strategy} they share one vector ({others} have more, on one node so far)"
    return "they share memory"


def _is_reduced(plan: Plan) -> bool:
    return plan.network.precision == "bfloat16"


def problem(dtype: str) -> str:
    """Why this machine cannot compute in a precision; empty if it can."""
    return f"it forbids {dtype}" if precision.forbidden() else ""
