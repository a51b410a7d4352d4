"""What `manyhands plan` prints: costs, a table for each site, and the sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from manyhands.planning.costs import Costs
from manyhands.planning.forecast import Best, Curve, best, one_worker
from manyhands.planning.formula import LEARNERS


def sentence(costs: Costs, sites: list[list[Curve]]) -> str:
    """The advice in one line."""
    bests = [best(found, one_worker(costs)) for found in sites]
    parts = [*_learner_bound(sites[0]), f"best on this machine: {_words(bests[0])}"]
    parts += [f"{one.site}: {_words(one)} at staleness {_short(one.outcome.staleness)}"
              for one in bests[1:]]  # fmt: skip
    return "; ".join(parts)


def _words(found: Best) -> str:
    return f"{found}, {_times(found.times)}x"


def _times(times: float) -> str:
    return f"{times:.1f}" if times < 10 else f"{times:.0f}"


def _learner_bound(found: list[Curve]) -> Iterator[str]:
    for curve in found:
        if not curve.way.apart:
            continue
        bound = [n for n, one in curve.outcomes.items() if one.waiting == LEARNERS]
        if bound:
            yield f"learner-bound beyond {curve.best()} actor{'s' * (curve.best() > 1)}"


def text(costs: Costs, sites: list[list[Curve]], title: str) -> str:
    lines = [title, *_costs(costs)]
    for found in sites:
        lines += ["", *_table(costs, found)]
    return "\n".join([*lines, "", sentence(costs, sites)])


def _costs(costs: Costs) -> list[str]:
    """Milliseconds of one core."""
    turn = {
        "act": costs.act_s,
        "environments": costs.step_s,
        "wait": costs.wait_s,
        "record": costs.record_s,
    }
    gradient = {
        "draw": costs.draw_s,
        "gradient": costs.gradient_s,
        "optimizer": costs.optimizer_s,
    }
    sharing = [
        f"  {name:16} pull {_ms(one.pull_s)}, push {_ms(one.push_s)}"
        + (f", shards {_ms(one.serve_s)}" if one.serve_s else "")
        + (f", {_ms(one.peer_s)} more for each other worker" if one.peer_s else "")
        for name, one in costs.sharing.items()
    ]
    return [
        f"a turn ({costs.lanes} environments): {_list(turn)}",
        f"a gradient ({costs.parameters:,} parameters): {_list(gradient)}",
        f"{costs.updates_per_turn:g} gradients a turn; with all {costs.cores} cores busy work "
        f"takes {costs.contention:.2f} times as long",
        "to share a gradient:",
        *sharing,
    ]


def _list(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {_ms(seconds)}" for name, seconds in parts.items() if seconds)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _table(costs: Costs, found: list[Curve]) -> Iterator[str]:
    """Agent steps per second, times those of one worker, and staleness."""
    if not found:
        return
    one = one_worker(costs)
    yield f"{found[0].site}: times one worker ({one:,.0f} agent steps/s), staleness"
    yield f"{'workers':>8}" + "".join(f"{curve.way.name:>20}" for curve in found)
    for count in found[0].outcomes:
        cells = (curve.outcomes[count] for curve in found)
        yield f"{count:>8,}" + "".join(
            f"{cell.agent_steps_per_s / one:>11.2f}{' ' if cell.simulated else '~'}"
            f"{_short(cell.staleness):>8}"
            for cell in cells
        )
    limits = (curve.outcomes[curve.best()].waiting for curve in found)
    yield f"{'limit':>8}" + "".join(f"{limit:>20}" for limit in limits)
    anchors = [(curve.way.name, curve.anchor) for curve in found if curve.anchor is not None]
    if anchors:
        ratios = ", ".join(f"{name} {one.ratio:.2f} at {one.workers:,}" for name, one in anchors)
        yield f"~ by formula, times its ratio to the simulation: {ratios}"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def as_json(costs: Costs, sites: list[list[Curve]], title: str) -> dict[str, Any]:
    one = one_worker(costs)
    return {
        "title": title,
        "costs": costs.as_json(),
        "one_worker_agent_steps_per_s": one,
        "sites": [
            {
                "site": asdict(found[0].site),
                "ways": {
                    curve.way.name: {
                        "sharing": asdict(curve.way.sharing),
                        "best": curve.best(),
                        "simulated_to": curve.anchor and curve.anchor.workers,
                        "simulated_by_formula": curve.anchor and curve.anchor.ratio,
                        "workers": {str(n): asdict(o) for n, o in curve.outcomes.items()},
                    }
                    for curve in found
                },
            }
            for found in sites
        ],
        "advice": sentence(costs, sites),
    }
