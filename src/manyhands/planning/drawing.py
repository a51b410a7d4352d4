"""The curves as a picture: throughput and staleness against the number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyhands.planning.costs import Costs
from manyhands.planning.forecast import Curve, one_worker
from manyhands.viewing.plot import headless_pyplot, save


def draw(costs: Costs, sites: list[list[Curve]], title: str, path: Path) -> Path:
    pyplot = headless_pyplot()
    figure, axes = pyplot.subplots(
        2, len(sites), figsize=(7 * len(sites), 8), layout="constrained", squeeze=False
    )
    for column, found in enumerate(sites):
        _draw(axes[0][column], axes[1][column], found, one_worker(costs))
    figure.suptitle(title)
    return save(figure, path)


def _draw(speed: Any, staleness: Any, found: list[Curve], one: float) -> None:
    for number, curve in enumerate(found):
        counts, colour = list(curve.outcomes), f"C{number}"
        times = [outcome.agent_steps_per_s / one for outcome in curve.outcomes.values()]
        speed.plot(counts, times, "o-", color=colour, label=curve.way.name, markersize=3)
        ages = [outcome.staleness for outcome in curve.outcomes.values()]
        staleness.plot(counts, ages, "o-", color=colour, label=curve.way.name, markersize=3)
    speed.set(
        xscale="log", yscale="log", xlabel="workers or actors", ylabel="times one worker",
        title=str(found[0].site),
    )  # fmt: skip
    staleness.set(xscale="log", xlabel="workers or actors", ylabel="mean staleness")
    staleness.set_yscale("symlog", linthresh=1)
    for axes in (speed, staleness):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
