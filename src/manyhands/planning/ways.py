"""The ways of sharing that fit a task and a recipe, each with the plan of a run to measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from manyhands.config import plans, registry
from manyhands.config.plans import Plan
from manyhands.planning.simulation import Way
from manyhands.types import BadRequest
from manyhands.types.communication import Sharing

ACTORS = "actors"  # the way in which actors are apart from learners
SHORT_WARMUP = 512  # agent steps
ENDLESS_MINUTES = 600.0
Flags = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Chosen:
    """A way, and what to measure it with."""

    way: Way
    task: str
    flags: Flags

    def plan(self, workers: int) -> Plan:
        """Of a run in processes that has a short warm-up and explores as at its end."""
        own: dict[str, Any] = {"actors": workers} if self.way.apart else {"workers": workers}
        run = {**self.flags.get("run", {}), **own, "backend": "processes"}
        plan = plans.resolve(self.task, {**self.flags, "run": run})
        options = plan.algorithm
        known = {field.name for field in fields(options)}  # type: ignore[arg-type]
        changed: dict[str, Any] = {}
        if "warmup_steps" in known:
            least = max(SHORT_WARMUP, 4 * getattr(options, "batch_size", 0))
            changed["warmup_steps"] = min(getattr(options, "warmup_steps"), least)  # noqa: B009
        if "epsilon_decay_steps" in known:
            changed["epsilon_decay_steps"] = 0
        algorithm = replace(options, **changed)  # type: ignore[type-var]
        top = replace(plan.top, steps=0, minutes=ENDLESS_MINUTES)
        return replace(plan, top=top, algorithm=algorithm)


def of(task: str, flags: Flags) -> list[Chosen]:
    """A recipe with workers is tried with every strategy; one with actors as it is."""
    base = plans.resolve(task, flags)
    if base.top.single_actor:
        return []
    if base.top.actors:
        sharing = base.strategy.sharing if base.top.learners > 1 else Sharing()
        return [Chosen(Way(ACTORS, sharing, base.top.learners), task, flags)]
    asked = flags.get("run", {}).get("strategy")
    names = [str(asked)] if asked else registry.names("strategies")
    found = [one for name in names if (one := _of_strategy(task, flags, name)) is not None]
    if base.algorithm.replay_demand is not None and not asked:
        run = {k: v for k, v in flags.get("run", {}).items() if k != "workers"}
        apart = {**_without_strategies(flags), "run": {**run, "actors": 1, "strategy": "serial"}}
        found.append(Chosen(Way(ACTORS, Sharing(), 1), task, apart))
    return found


def _of_strategy(task: str, flags: Flags, name: str) -> Chosen | None:
    """None: it does not share, or it does not fit the recipe."""
    own = {**_without_strategies(flags, name), "run": {**flags.get("run", {}), "strategy": name}}
    try:
        plan = plans.resolve(task, own)
    except BadRequest:
        if flags.get("run", {}).get("strategy"):
            raise
        return None
    if not plan.strategy.shares_parameters:
        return None
    sharing = plan.strategy.sharing
    if sharing.island:
        sharing = replace(sharing, island=plan.top.island_size)
    return Chosen(Way(name, sharing), task, own)


def _without_strategies(flags: Flags, but: str = "") -> dict[str, Mapping[str, Any]]:
    """Without the sections of other strategies than this one."""
    others = {registry.section_name(n) for n in registry.names("strategies") if n != but}
    return {name: section for name, section in flags.items() if name not in others}
