"""What the numbers say in sentences, and no more than they say.

Best is claimed only of what was solved with every seed, and only against those whose interval lies
wholly beyond its own; with one seed nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.compare.folder import FAILED, NOT_APPLICABLE, NOT_RUN
from manyhands.compare.groups import Comparison, Group
from manyhands.compare.phrases import estimated, listed
from manyhands.compare.statistics import EXACT, LEAST

FEW_SEEDS = 5


def findings(comparison: Comparison) -> list[str]:
    told = [_counts(comparison)]
    if comparison.is_solve:
        told += _best(comparison, "seconds_to_solve", "Soonest solved", "s", least=True)
        told += _best(comparison, "episodes_to_solve", "Fewest episodes", "episodes", least=True)
    else:
        told += _best(comparison, "agent_steps_per_s", "Most agent steps", "steps/s", least=False)
        told += _best(comparison, "updates_per_s", "Most updates", "updates/s", least=False)
    return [*told, *_caution(comparison)]


def _counts(comparison: Comparison) -> str:
    outcomes = [result.row["outcome"] for result in comparison.results]
    found = {kind: outcomes.count(kind) for kind in dict.fromkeys(outcomes)}
    told = listed([f"{count} {kind}" for kind, count in found.items()])
    return f"Of {len(outcomes)} cells: {told}."


def _best(comparison: Comparison, measure: str, title: str, unit: str, *, least: bool) -> list[str]:
    """The best group, and those that it cannot be told apart from."""
    ranked = _ranked(comparison, measure, least=least)
    if not ranked:
        return [f"{title}: no recipe was solved with every seed, so none is named."]
    best = ranked[0]
    found = best.measures[measure]
    told = f"{title}: {best.title}, {estimated(measure, found)} {unit}"
    if found.low is None:
        return [f"{told}; one seed, so this is an observation and not a claim."]
    near = [g.title for g in ranked[1:] if _overlap(best, g, measure)]
    told += f"; its interval overlaps that of {_some(near)}: not told apart" if near else ""
    open_ended = [g.title for g in comparison.have(measure) if _may_be_better(best, g, measure)]
    if open_ended:
        told += f"; not ruled out, as not every seed was solved: {_some(open_ended)}"
    if ranked[1:] and not near and not open_ended:
        told += "; no other interval reaches into its own"
    return [f"{told}."]


def _ranked(comparison: Comparison, measure: str, *, least: bool) -> list[Group]:
    whole = [
        group
        for group in comparison.have(measure)
        if group.measures[measure].bound == EXACT and not group.count(FAILED)
    ]
    return sorted(whole, key=lambda g: g.measures[measure].value * (1 if least else -1))


def _overlap(one: Group, other: Group, measure: str) -> bool:
    mine, theirs = one.measures[measure], other.measures[measure]
    ends = (mine.low, mine.high, theirs.low, theirs.high)
    if any(end is None for end in ends):
        return True  # a single seed's place is not known
    low, high, their_low, their_high = (float(end) for end in ends if end is not None)
    return low <= their_high and their_low <= high


def _may_be_better(best: Group, other: Group, measure: str) -> bool:
    """Its value is only known to be at least this, and this is less than the best's."""
    theirs, most = other.measures[measure], best.measures[measure].high
    return theirs.bound == LEAST and most is not None and theirs.value <= most


def _some(names: Sequence[str]) -> str:
    shown = list(names[:3])
    return listed(shown) if len(names) <= 3 else f"{', '.join(shown)} and {len(names) - 3} more"


def _caution(comparison: Comparison) -> list[str]:
    told, study = [], comparison.study
    fewest = min((len(g.ended) for g in comparison.groups.values() if g.ended), default=0)
    if fewest == 1 and len(study.seeds) == 1:
        told.append("One seed: there are no intervals, and no difference here is a claim.")
    elif fewest < FEW_SEEDS and fewest:
        told.append(f"Some groups have {fewest} seed(s): their intervals are rough at best.")
    if any(group.beyond_cores for group in comparison.groups.values()):
        told.append(
            f"Cells marked † had more busy processes than the machine's {comparison.cores} "
            "core(s): they show the cost of sharing, not what more cores would give."
        )
    outcomes = {result.row["outcome"] for result in comparison.results}
    told += ["Cells that failed are listed below with their reason."] * (FAILED in outcomes)
    told += ["Not every cell has been run: the same command goes on."] * (NOT_RUN in outcomes)
    told += ["Cells that make no sense are listed below."] * (NOT_APPLICABLE in outcomes)
    return told


def baseline_sentences(comparison: Comparison) -> list[tuple[str, str]]:
    """(recipe, what its speed-up is over)."""
    told = []
    for entry in comparison.study.entries:
        if entry.name not in comparison.baselines:
            told.append((entry.name, "none: no serial run of its algorithm has ended"))
            continue
        base, _ = comparison.baselines[entry.name]
        plan = comparison.groups[comparison.baselines[entry.name]].results[0].cell.plan
        serial = plan is not None and plan.top.strategy == "serial"
        own = f"{base} with one worker" + ("" if serial else ", its own: no serial run is there")
        told.append((entry.name, own))
    return told
