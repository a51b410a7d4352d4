"""Groups the seeds of each recipe with each number of workers, and computes speed-ups.

The baseline of a speed-up is the serial run of the same algorithm with one worker whose values
differ least from the recipe's. Without one, it is the recipe's own run with one worker, and the
report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from manyhands.compare.folder import FAILED, NOT_RUN, SOLVED
from manyhands.compare.results import Result
from manyhands.compare.statistics import EXACT, LEAST, Estimate, estimate, ratio
from manyhands.compare.study import SOLVE, Study
from manyhands.config import plans as config

TO_SOLVE = ("episodes_to_solve", "seconds_to_solve", "agent_steps_to_solve")
PLAIN = (
    "agent_steps_per_s", "updates_per_s", "sharing", "staleness_mean", "staleness_p95",
    "best_return_mean_100",
)  # fmt: skip
Key = tuple[str, int]


class Group(NamedTuple):
    """The seeds of one recipe with one number of workers."""

    name: str
    workers: int
    results: list[Result]
    measures: dict[str, Estimate]

    @property
    def ended(self) -> list[Result]:
        return [result for result in self.results if result.ended]

    def count(self, outcome: str) -> int:
        return sum(result.row["outcome"] == outcome for result in self.results)

    @property
    def solved(self) -> int:
        return self.count(SOLVED)

    @property
    def refusal(self) -> str:
        return self.results[0].cell.refusal

    @property
    def beyond_cores(self) -> bool:
        return any(result.row["beyond_cores"] for result in self.results)

    @property
    def title(self) -> str:
        return f"{self.name} with {self.workers} worker" + "s" * (self.workers > 1)

    @property
    def notes(self) -> str:
        """The seeds without numbers, by outcome."""
        counts = [(self.count(kind), kind) for kind in (FAILED, NOT_RUN)]
        return ", ".join(f"{count} {kind}" for count, kind in counts if count)


class Comparison(NamedTuple):
    study: Study
    results: list[Result]
    groups: dict[Key, Group]
    baselines: dict[str, Key]  # by recipe; a recipe may have none
    cores: int

    def have(self, measure: str) -> list[Group]:
        return [group for group in self.groups.values() if measure in group.measures]

    @property
    def is_solve(self) -> bool:
        return self.study.metric == SOLVE


def compared(study: Study, results: Sequence[Result], *, cores: int) -> Comparison:
    groups = {}
    for entry in study.entries:
        for workers in study.workers:
            mine = [r for r in results if (r.cell.entry, r.cell.workers) == (entry.name, workers)]
            measures = _measures(study, [result for result in mine if result.ended])
            groups[entry.name, workers] = Group(entry.name, workers, mine, measures)
    baselines = _baselines(study, groups)
    _add_speed_ups(study, groups, baselines)
    return Comparison(study, list(results), groups, baselines, cores)


def _measures(study: Study, ended: list[Result]) -> dict[str, Estimate]:
    """A group has a measure only if every seed that ended has it."""
    if not ended:
        return {}
    censored = any(result.row["outcome"] != SOLVED for result in ended)
    names = (*TO_SOLVE, "seconds_per_episode", *PLAIN) if study.metric == SOLVE else PLAIN
    found = {}
    for name in names:
        values = values_of(ended, name)
        if values:
            bound = LEAST if censored and name in TO_SOLVE else EXACT
            found[name] = estimate(values, bound=bound)
    return found


def values_of(ended: Sequence[Result], measure: str) -> list[float]:
    values = [result.row.get(measure) for result in ended]
    return [] if any(v is None for v in values) else [float(v) for v in values if v is not None]


# --- Baselines ----------------------------------------------------------------------------------


def _baselines(study: Study, groups: Mapping[Key, Group]) -> dict[str, Key]:
    serial = [key for key, group in groups.items() if group.ended and _is_serial(group)]
    found = {}
    for entry in study.entries:
        plan = _plan([groups[entry.name, workers] for workers in study.workers])
        if plan is None:
            continue
        same = [key for key in serial if _of(groups[key]).top.algorithm == plan.top.algorithm]
        own = groups.get((entry.name, 1))
        if same:
            found[entry.name] = min(same, key=_distance(plan, groups))
        elif own is not None and own.ended:
            found[entry.name] = (entry.name, 1)
    return found


def _is_serial(group: Group) -> bool:
    top = _of(group).top
    return group.workers == 1 and top.strategy == "serial" and not top.actors


def _of(group: Group) -> config.Plan:
    plan = group.results[0].cell.plan
    assert plan is not None
    return plan


def _plan(groups: Sequence[Group]) -> config.Plan | None:
    plans = (result.cell.plan for group in groups for result in group.results)
    return next((plan for plan in plans if plan is not None), None)


def _distance(plan: config.Plan, groups: Mapping[Key, Group]) -> Callable[[Key], int]:
    """In how many option values another run differs from the plan."""
    own = _flat(plan)

    def differences(key: Key) -> int:
        other = _flat(_of(groups[key]))
        return sum(own[name] != other[name] for name in own.keys() & other.keys())

    return differences


def _flat(plan: config.Plan) -> dict[str, Any]:
    layer = plan.as_layer()
    run = {"run.envs_per_worker": layer.pop("run")["envs_per_worker"]}
    return run | {f"{s}.{n}": value for s, values in layer.items() for n, value in values.items()}


def _add_speed_ups(study: Study, groups: Mapping[Key, Group], baselines: dict[str, Key]) -> None:
    for group in groups.values():
        base = groups.get(baselines.get(group.name, ("", 0)))
        if base is None or not group.ended:
            continue
        found = _speed_up(study, base, group)
        if found is not None:
            group.measures["speed_up"] = found
            group.measures["efficiency"] = _scaled(found, 1 / group.workers)


def _speed_up(study: Study, base: Group, group: Group) -> Estimate | None:
    """How many times sooner it was solved, or how many times the agent steps a second."""
    if study.metric != SOLVE:
        rates = [values_of(g.ended, "agent_steps_per_s") for g in (group, base)]
        return ratio(*rates, bounds=(EXACT, EXACT))
    times = [values_of(g.ended, "seconds_to_solve") for g in (base, group)]
    bounds = [g.measures["seconds_to_solve"].bound for g in (base, group)]
    if base is group:  # 1 by definition, also if it is a bound
        return Estimate(1.0, None, None, len(times[0]))
    return ratio(*times, bounds=(bounds[0], bounds[1]))


def _scaled(found: Estimate, factor: float) -> Estimate:
    low, high = (None if end is None else end * factor for end in (found.low, found.high))
    return found._replace(value=found.value * factor, low=low, high=high)
