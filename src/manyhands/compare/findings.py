"""The findings in sentences that claim no more than the numbers support.

A recipe is called best only if every seed solved it. It beats another only if their intervals do
not overlap. One seed supports no claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.compare.folder import FAILED, NOT_APPLICABLE, NOT_RUN
from manyhands.compare.groups import Comparison, Group
from manyhands.compare.origin import elsewhere, seeds
from manyhands.compare.phrases import estimated, listed
from manyhands.compare.statistics import EXACT, LEAST

FEW_SEEDS = 5


def findings(comparison: Comparison) -> list[str]:
    if comparison.is_solve:
        best = [
            *_best(comparison, "seconds_to_solve", "Soonest solved", "s", least=True),
            *_best(comparison, "episodes_to_solve", "Fewest episodes", "episodes", least=True),
        ]
    else:
        best = [
            *_best(comparison, "agent_steps_per_s", "Most agent steps", "steps/s", least=False),
            *_best(comparison, "updates_per_s", "Most updates", "updates/s", least=False),
        ]
    return [_counts(comparison), *best, *_caution(comparison)]


def _counts(comparison: Comparison) -> str:
    outcomes = [result.row["outcome"] for result in comparison.results]
    found = {kind: outcomes.count(kind) for kind in dict.fromkeys(outcomes)}
    counts = listed([f"{count} {kind}" for kind, count in found.items()])
    return f"Of {len(outcomes)} cells: {counts}."


def _best(comparison: Comparison, measure: str, title: str, unit: str, *, least: bool) -> list[str]:
    """The best group, and the groups that may be as good."""
    ranked = _ranked(comparison, measure, least=least)
    if not ranked:
        return [f"{title}: no recipe was solved with every seed, so none is named."]
    best = ranked[0]
    found = best.measures[measure]
    sentence = f"{title}: {best.title}, {estimated(measure, found)} {unit}"
    if found.low is None:
        return [f"{sentence}; one seed, so this is an observation and not a claim."]
    near = [g.title for g in ranked[1:] if _overlap(best, g, measure)]
    if near:
        sentence += f"; its interval overlaps that of {_some(near)}, so they may be as good"
    open_ended = [g.title for g in comparison.have(measure) if _may_be_better(best, g, measure)]
    if open_ended:
        sentence += f"; not ruled out, as not every seed was solved: {_some(open_ended)}"
    if ranked[1:] and not near and not open_ended:
        sentence += "; no other interval overlaps its own"
    return [f"{sentence}."]


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
        return True  # one seed has no interval
    low, high, their_low, their_high = (float(end) for end in ends if end is not None)
    return low <= their_high and their_low <= high


def _may_be_better(best: Group, other: Group, measure: str) -> bool:
    """Its value is a lower bound that is below the best group's interval end."""
    theirs, most = other.measures[measure], best.measures[measure].high
    return theirs.bound == LEAST and most is not None and theirs.value <= most


def _some(names: Sequence[str]) -> str:
    shown = list(names[:3])
    return listed(shown) if len(names) <= 3 else f"{', '.join(shown)} and {len(names) - 3} more"


def _caution(comparison: Comparison) -> list[str]:
    sentences, study = [], comparison.study
    fewest = min((len(g.ended) for g in comparison.groups.values() if g.ended), default=0)
    if fewest == 1 and len(study.seeds) == 1:
        sentences.append("One seed: there are no intervals, and no difference here is a claim.")
    elif fewest < FEW_SEEDS and fewest:
        sentences.append(f"Some groups have {fewest} seed(s): their intervals are rough at best.")
    if any(group.beyond_cores for group in comparison.groups.values()):
        sentences.append(
            f"Cells marked † had more busy processes than the machine's {comparison.cores} "
            "core(s): they show the cost of sharing, not what more cores would give."
        )
    others = [r for group in comparison.groups.values() for r in elsewhere(comparison, group)]
    if others:
        sentences.append(
            f"{len(others)} cell(s), marked ‡, ran at another commit than the rest: a difference "
            "may be one of the code."
        )
    sentences += _unequal(comparison)
    outcomes = {result.row["outcome"] for result in comparison.results}
    sentences += ["Cells that failed are listed below with their reason."] * (FAILED in outcomes)
    sentences += ["Not every cell has run: the same command continues."] * (NOT_RUN in outcomes)
    sentences += ["Cells that make no sense are listed below."] * (NOT_APPLICABLE in outcomes)
    return sentences


def _unequal(comparison: Comparison) -> list[str]:
    """Means over different seeds are not of the same thing."""
    found = {tuple(seeds(group.results)) for group in comparison.groups.values() if group.ended}
    return ["Groups have different seeds: compare them with care."] * (len(found) > 1)


def baseline_sentences(comparison: Comparison) -> list[tuple[str, str]]:
    """(recipe, the baseline of its speed-up)."""
    sentences = []
    for entry in comparison.study.entries:
        if entry.name not in comparison.baselines:
            sentences.append((entry.name, "none: no serial run of its algorithm has ended"))
            continue
        base, _ = comparison.baselines[entry.name]
        plan = comparison.groups[comparison.baselines[entry.name]].results[0].cell.plan
        serial = plan is not None and plan.top.strategy == "serial"
        own = "" if serial else ", its own run: there is no serial run"
        sentences.append((entry.name, f"{base} with one worker{own}"))
    return sentences
