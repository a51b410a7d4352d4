"""Tables of the studies: benchmarks/results/study-NAME/, which `manyhands compare` wrote.

    python benchmarks/results_studies.py        # draws benchmarks/results/staleness.png

Of a folder of `make study-NAME`, keep cells.csv, estimates.csv and sittings.jsonl, for a figure
curves.csv too.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyhands.compare.statistics import band, estimate
from provenance import Origin, parts_of, short
from results_tables import RESULTS, Row, Table, joined, number

Cell = dict[str, str]
ENDED = ("solved", "not solved", "measured")  # outcomes with numbers
OPTIMIZERS = ("sgd", "rmsprop", "adagrad", "adam")
PICTURE = "staleness.png"
MOST_LISTED = 5  # seeds


def folder(name: str) -> Path:
    return RESULTS / f"study-{name}"


def cells(name: str) -> list[Cell]:
    """The cells that were run, failed ones included."""
    with (folder(name) / "cells.csv").open(encoding="utf-8", newline="") as lines:
        return [c for c in csv.DictReader(lines) if c["outcome"] in (*ENDED, "failed")]


def machine(name: str) -> str:
    sat = [json.loads(line) for line in (folder(name) / "sittings.jsonl").read_text().splitlines()]
    return " / ".join(dict.fromkeys(short(sitting["machine"]) for sitting in sat))


def origin(group: list[Cell], name: str, task: str, *values: str) -> Origin:
    """`values`: the options that the study sets itself."""
    commits = tuple(dict.fromkeys(cell["commit"] for cell in group if cell["commit"]))
    strategies = dict.fromkeys(cell["strategy"] for cell in group)
    parts = (part for s in strategies for part in parts_of(commits[0], group[0]["recipe"], task, s))
    flags = frozenset({"workers", "strategy", *values})
    return Origin(commits, machine(name), tuple(parts), task, group[0]["recipe"], flags)


def solved(group: list[Cell]) -> str:
    """How many of those that ended. A failed cell is never left out."""
    ended = [cell for cell in group if cell["outcome"] in ENDED]
    failed = len(group) - len(ended)
    count = sum(cell["outcome"] == "solved" for cell in ended)
    return f"{count} of {len(ended)}" + (f", {failed} failed" if failed else "")


def values(group: list[Cell], column: str) -> list[float]:
    return [float(cell[column]) for cell in group if cell[column]]


def each(group: list[Cell], column: str, digits: int = 0) -> str:
    """A value for every seed; of many seeds the interquartile mean."""
    if len(group) > MOST_LISTED:
        return over_seeds(group, column, digits)
    return joined(number(float(c[column]) if c[column] else None, digits) for c in group)


def over_seeds(group: list[Cell], column: str, digits: int = 0) -> str:
    """The interquartile mean over seeds with its bootstrap interval."""
    given = values(group, column)
    if not given:
        return "–"
    found = estimate(given)
    if found.low is None or found.high is None:
        return number(found.value, digits)
    ends = " to ".join(number(end, digits) for end in (found.low, found.high))
    return f"{number(found.value, digits)} ({ends})"


def grouped(name: str, key: Callable[[Cell], Any]) -> dict[Any, list[Cell]]:
    groups: dict[Any, list[Cell]] = defaultdict(list)
    for cell in cells(name):
        groups[key(cell)].append(cell)
    return dict(sorted(groups.items()))


# --- Ways of sharing ----------------------------------------------------------------------------


def study(task: str) -> Table:
    """One row per variant and number of workers."""
    columns = ["recipe or variant", "workers", "solved", "agent steps to solve"]
    columns += ["seconds", "episodes", "updates/s", "mean staleness"]
    rows = []
    for (variant, workers), group in grouped(
        task, lambda c: (c["name"], int(c["workers"]))
    ).items():
        shown = [f"`{variant}`", str(workers), solved(group), each(group, "agent_steps_to_solve")]
        shown += [each(group, f"{what}_to_solve") for what in ("seconds", "episodes")]
        shown += [each(group, "updates_per_s"), each(group, "staleness_mean", 1)]
        rows.append(Row(shown, origin(group, task, task)))
    return Table(columns, rows)


# --- Staleness ----------------------------------------------------------------------------------


def delay_of(cell: Cell) -> int:
    return int(cell["name"].rpartition("-")[2])


def staleness(measure: Callable[[list[Cell]], str]) -> Table:
    """A row per delay, a column per optimizer."""
    rows = []
    for delay, group in grouped("staleness", delay_of).items():
        by_rule = {
            rule: [c for c in group if c["name"] == f"{rule}-{delay}"] for rule in OPTIMIZERS
        }
        shown = [measure(by_rule[rule]) for rule in OPTIMIZERS]
        own = ("optim.name", "dqn.lr", "dqn.lr_decay_steps")
        rows.append(Row([str(delay), *shown], origin(group, "staleness", "cartpole", *own)))
    return Table(["updates late", *OPTIMIZERS], rows)


def staleness_solved() -> Table:
    """How many seeds, and the agent steps it took. Without a number: not all were solved."""

    def text(group: list[Cell]) -> str:
        if any(cell["outcome"] != "solved" for cell in group):
            return solved(group)
        return f"{solved(group)}; {over_seeds(group, 'agent_steps_to_solve')}"

    return staleness(text)


def staleness_best() -> Table:
    return staleness(lambda group: over_seeds(group, "best_return_mean_100"))


def adagrad() -> Table:
    rows = []
    for (name, workers), group in grouped("adagrad", lambda c: (c["name"], c["workers"])).items():
        shown = [f"`{name}`", workers, solved(group), each(group, "agent_steps_to_solve")]
        shown += [over_seeds(group, "best_return_mean_100"), each(group, "staleness_mean", 1)]
        own = ("optim.name", "optim.eps", "optim.initial", "dqn.lr", "dqn.lr_decay_steps")
        rows.append(Row(shown, origin(group, "adagrad", "cartpole", *own)))
    columns = ["variant", "workers", "solved", "agent steps used", "best mean of 100"]
    return Table([*columns, "mean staleness"], rows)


def lag() -> Table:
    """How old gradients were, and the weights that separate actors acted with."""
    rows = []
    for (name, actors), group in grouped("lag", lambda c: (c["name"], int(c["workers"]))).items():
        shown = [f"`{name}`", str(actors), each(group, "staleness_mean", 1)]
        shown += [each(group, "actors_staleness_mean", 1), each(group, "updates_per_s")]
        rows.append(Row(shown, origin(group, "lag", "cartpole")))
    columns = ["recipe", "actors or workers", "gradients, updates late"]
    return Table([*columns, "actors' weights, updates late", "updates/s"], rows)


# --- Learning curves ----------------------------------------------------------------------------


def main() -> None:
    """Return against agent steps: a panel for each optimizer, a line for each delay."""
    from manyhands.viewing.plot import headless_pyplot

    pyplot = headless_pyplot()
    figure, panels = pyplot.subplots(1, len(OPTIMIZERS), figsize=(13, 3.6), sharey=True)
    drawn = grouped("staleness", lambda c: (c["name"].rpartition("-")[0], delay_of(c)))
    delays = sorted({delay for _, delay in drawn})
    colours = pyplot.get_cmap("viridis")
    for (rule, delay), group in drawn.items():
        steps, middle = curve([cell["cell"] for cell in group])
        colour = colours(delays.index(delay) / max(1, len(delays) - 1))
        panels[OPTIMIZERS.index(rule)].plot(steps, middle, color=colour, label=str(delay))
    for rule, panel in zip(OPTIMIZERS, panels, strict=True):
        panel.set_title(rule)
        panel.set_xlabel("agent steps")
        panel.axhline(475, color="grey", linewidth=0.8, linestyle="--")
    panels[0].set_ylabel("mean return of 100 episodes")
    panels[-1].legend(title="updates late", loc="upper left", bbox_to_anchor=(1.02, 1.0))
    figure.tight_layout()
    figure.savefig(RESULTS / PICTURE, dpi=100)


def curve(names: list[str]) -> tuple[Any, Any]:
    """The interquartile mean over cells. One that was solved keeps its last value."""
    import numpy as np

    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with (folder("staleness") / "curves.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["cell"] in points:
                points[row["cell"]].append((float(row["agent_steps"]), float(row["score"])))
    grid = np.linspace(0, 150_000, 76)
    columns = [np.asarray([(0.0, 0.0), *found]).T for found in points.values()]
    curves = [np.interp(grid, steps, scores) for steps, scores in columns]
    return grid, band(np.asarray(curves))[0]


if __name__ == "__main__":
    main()
