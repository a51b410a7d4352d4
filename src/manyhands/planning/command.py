"""``manyhands plan``: measures, simulates and says what more workers would give."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.config import plans
from manyhands.config.presets import Layer
from manyhands.planning.costs import Costs, Site
from manyhands.types import BadRequest, machine

MOST_WORKERS = 10_000


class Found(NamedTuple):
    """What was measured, and the curves of every site."""

    costs: Costs
    sites: list[list[Any]]  # of `forecast.Curve`, which needs SimPy
    title: str


def plan(task: str, options: Mapping[str, Any], flags: Layer) -> int:
    quiet = bool(options.get("json"))
    out = options.get("out", "")
    if out:
        from manyhands.viewing import plot

        plot.check(Path(out))  # refused now, not after a minute
    counts, sites = counts_of(options.get("workers", "")), sites_of(options)
    found = look_ahead(task, flags, sites, tell=_silent if quiet else _tell, counts=counts)
    from manyhands.planning import drawing, report

    given = found.costs, found.sites, found.title
    if out:
        drawing.draw(*given, Path(out))
    print(json.dumps(report.as_json(*given)) if quiet else report.text(*given))
    if out and not quiet:
        print(f"curves: {out}")
    return 0


def sites_of(options: Mapping[str, Any]) -> list[Site]:
    """This machine, and what was asked for."""
    here = Site(machine.cores())
    cores, nodes = options.get("cores", 0), options.get("nodes", 1)
    gbps = options.get("gbps", 0.0)
    if gbps and nodes == 1:
        raise BadRequest(f"--gbps {gbps:g} without --nodes: nothing is sent", "add --nodes N")
    if nodes > 1:
        return [here, Site(cores or here.cores, nodes, gbps or 10.0)]
    return [here, Site(cores)] if cores else [here]


def counts_of(text: str) -> tuple[int, ...]:
    """The numbers of workers, in order; empty: the usual ones."""
    try:
        counts = sorted({int(word) for word in text.replace(",", " ").split()})
    except ValueError:
        raise BadRequest(f"--workers {text!r} is no list", "give numbers, e.g. 1,2,4") from None
    if counts and not 1 <= counts[0] <= counts[-1] <= MOST_WORKERS:
        raise BadRequest(
            f"--workers {text} is out of range", f"give numbers from 1 to {MOST_WORKERS:,}"
        )
    return tuple(counts)


def look_ahead(
    task: str,
    flags: Layer,
    sites: list[Site],
    *,
    tell: Callable[[str], None],
    counts: tuple[int, ...] = (),
) -> Found:
    """Measures here and simulates every site."""
    needs_simpy()
    from manyhands.planning import forecast, measuring, ways

    chosen = ways.of(task, flags)
    recipe = plans.resolve(task, flags).top.recipe
    if not chosen:
        raise BadRequest(
            f"{recipe} cannot be shared by many workers", "try another --recipe, e.g. hogwild"
        )
    begun_s = time.perf_counter()
    costs = measuring.measure(chosen, tell)
    seconds = time.perf_counter() - begun_s
    title = f"{task} by {recipe}, measured in {seconds:.0f} s on {Site(machine.cores())}"
    all_ways = [one.way for one in chosen]
    curves = [forecast.curves(all_ways, costs, site, counts or forecast.COUNTS) for site in sites]
    return Found(costs, [found for found in curves if found], title)


def best_of(found: Found) -> Any:
    """What is fastest here, a `forecast.Best`."""
    from manyhands.planning import forecast

    return forecast.best(found.sites[0], forecast.one_worker(found.costs))


def needs_simpy() -> None:
    try:
        import simpy  # noqa: F401
    except ImportError as error:
        raise BadRequest("plan needs SimPy", 'pip install "manyhands[plan]"') from error


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _silent(line: str) -> None: ...
