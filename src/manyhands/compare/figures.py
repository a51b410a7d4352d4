"""The figures of a comparison, as PNG and SVG, each with an alternative text.

Recipes differ in colour, marker and line style. A bound (some seeds were not solved) has a hollow
marker and an arrow towards the true value. An SVG follows the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyhands.compare.curves import BY_STEPS, BY_TIME, Band, bands
from manyhands.compare.folder import unwritable
from manyhands.compare.groups import Comparison, Group
from manyhands.compare.phrases import estimated, number, short
from manyhands.compare.statistics import EXACT, LEAST, MOST, Estimate
from manyhands.config import runfiles
from manyhands.viewing.plot import headless_pyplot

COLOURS = (
    "#4477aa", "#cc6677", "#228833", "#b8860b", "#9966cc", "#33a0b8",
    "#d1622b", "#7a8a3c", "#c4579a", "#5f7d8c", "#8c6d5f", "#3c7a5f",
)  # fmt: skip
MARKERS, LINES = "osD^vP*X", ("-", "--", "-.", ":")
INK = "#010203"  # in SVG replaced by the reader's text colour
STYLE = {
    "font.size": 9.5, "axes.titlesize": 10.5, "axes.spines.top": False, "axes.spines.right": False,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "axes.titlecolor": INK, "grid.color": INK, "grid.alpha": 0.13,
    "legend.frameon": False, "svg.hashsalt": "manyhands", "axes.axisbelow": True,
}  # fmt: skip


class Figure(NamedTuple):
    name: str
    title: str
    caption: str
    alt: str  # the alternative text: the numbers
    draw: Callable[[Any], Any]  # pyplot -> matplotlib's figure


class Drawn(NamedTuple):
    figure: Figure
    svg: str


def draw(folder: Path, figures: Sequence[Figure]) -> list[Drawn]:
    """Writes NAME.png and NAME.svg for each."""
    pyplot = headless_pyplot()
    try:
        with (
            runfiles.opened(folder.parent, folder.name, make=True) as there,
            pyplot.rc_context(STYLE),
        ):
            return [_drawn(pyplot, there, figure) for figure in figures]
    except OSError as error:
        raise unwritable(folder, error) from error


def _drawn(pyplot: Any, folder: runfiles.Directory, figure: Figure) -> Drawn:
    made, vectors = figure.draw(pyplot), BytesIO()
    facts = {"Date": None, "Title": figure.title}
    try:
        with folder.replacing(f"{figure.name}.png") as file:
            made.savefig(file, format="png", dpi=130, facecolor="white")
        made.savefig(vectors, format="svg", transparent=True, metadata=facts)
    finally:
        pyplot.close(made)
    svg = _readers_ink(vectors.getvalue().decode())
    folder.write(f"{figure.name}.svg", svg.encode())
    return Drawn(figure, svg)


def _readers_ink(svg: str) -> str:
    style = "svg{color:#1c2530}@media(prefers-color-scheme:dark){svg{color:#dfe5ec}}"
    head, tag, rest = svg.replace(INK, "currentColor").partition("<defs>")
    return f"{head}<style>{style}</style>{tag}{rest}"


# --- One number against the number of workers ---------------------------------------------------


def against_workers(
    comparison: Comparison, measure: str, *, title: str, axis: str, caption: str,
    ideal: Callable[[int], float] | None = None, log: bool = False, share: bool = False,
) -> Figure:  # fmt: skip
    groups = comparison.have(measure)

    def paint(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(figsize=(7.6, 4.1), layout="constrained")
        names = list(dict.fromkeys(group.name for group in groups))
        for position, name in enumerate(names):
            mine = [group for group in groups if group.name == name]
            _line(axes, comparison, mine, measure, (position - (len(names) - 1) / 2) / len(names))
        if ideal is not None:
            _ideal(axes, comparison, ideal)
        _workers_axis(axes, comparison)
        axes.set(ylabel=axis)
        axes.set_yscale("log") if log else axes.set_ylim(bottom=0)
        if share:
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        _legend(figure, axes)
        return figure

    return Figure(measure, title, caption, _alt_text(title, groups, measure), paint)


def _line(
    axes: Any, comparison: Comparison, groups: list[Group], measure: str, aside: float
) -> None:
    look = look_of(comparison, groups[0].name)
    at = np.array([comparison.study.workers.index(g.workers) for g in groups]) + 0.45 * aside
    found = [group.measures[measure] for group in groups]
    values = [one.value for one in found]
    axes.plot(at, values, color=look["color"], linestyle=look["linestyle"], alpha=0.55, lw=1.2)
    axes.plot([], [], linestyle="none", label=groups[0].name, **_marker(look, EXACT))
    for x, one in zip(at, found, strict=True):
        _point(axes, float(x), one, look)


def _marker(look: dict[str, Any], bound: str) -> dict[str, Any]:
    hollow = {} if bound == EXACT else {"markerfacecolor": "none"}
    whole = {"clip_on": False}  # a value of 0 lies at the edge
    return {"color": look["color"], "marker": look["marker"], "markersize": 6.5, **hollow, **whole}


def _point(axes: Any, x: float, one: Estimate, look: dict[str, Any]) -> None:
    """Of the interval of a bound only the known side is drawn."""
    if one.low is not None and one.high is not None:
        low = one.value if one.bound == MOST else one.low
        high = one.value if one.bound == LEAST else one.high
        axes.vlines(x, low, high, color=look["color"], lw=1.6, alpha=0.8)
    axes.plot([x], [one.value], linestyle="none", **_marker(look, one.bound))
    if one.bound != EXACT:
        sign, above = ("↑", 1) if one.bound == LEAST else ("↓", -1)
        position = {"va": "bottom" if above > 0 else "top", "ha": "center"}
        axes.annotate(
            sign, (x, one.value), xytext=(0, 4 * above), textcoords="offset points",
            color=look["color"], fontsize=12, fontweight="bold", **position,
        )  # fmt: skip


def _ideal(axes: Any, comparison: Comparison, ideal: Callable[[int], float]) -> None:
    workers = comparison.study.workers
    values = [ideal(count) for count in workers]
    axes.plot(range(len(workers)), values, color=INK, alpha=0.45, lw=1, ls=(0, (2, 3)), zorder=1)
    axes.annotate(
        "ideal", (len(workers) - 1, values[-1]), xytext=(4, 0), textcoords="offset points",
        alpha=0.6, va="center", annotation_clip=False,
    )  # fmt: skip


def _workers_axis(axes: Any, comparison: Comparison) -> None:
    workers = comparison.study.workers
    axes.set_xticks(range(len(workers)), [str(count) for count in workers])
    axes.set_xlim(-0.5, len(workers) - 0.5)
    axes.set(xlabel="workers")
    axes.grid(axis="y")
    beyond = [at for at, count in enumerate(workers) if count > comparison.cores]
    for at in beyond:
        axes.axvspan(at - 0.5, at + 0.5, color=INK, alpha=0.055, lw=0, zorder=0)
    if beyond:
        note = f"more workers than cores ({comparison.cores})"
        blended = axes.get_xaxis_transform()
        axes.text(len(workers) - 0.5, 1.015, note, transform=blended, ha="right", va="bottom",
                  fontsize=8, alpha=0.65)  # fmt: skip


def look_of(comparison: Comparison, name: str) -> dict[str, Any]:
    position = [entry.name for entry in comparison.study.entries].index(name)
    return {
        "color": COLOURS[position % len(COLOURS)],
        "marker": MARKERS[position % len(MARKERS)],
        "linestyle": LINES[(position // 3) % len(LINES)],
    }


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside right upper", fontsize=9)


def _alt_text(title: str, groups: Sequence[Group], measure: str) -> str:
    """The figure in words."""
    texts = [f"{g.title}: {estimated(measure, g.measures[measure])}" for g in groups]
    return f"{title}. " + "; ".join(texts) + "."


# --- Curves -------------------------------------------------------------------------------------


def scores_together(comparison: Comparison, by: str, *, name: str, title: str) -> Figure:
    """A panel for each number of workers, a line for each recipe."""
    panels = [
        (f"{count} worker" + "s" * (count > 1), [
            (entry.name, look_of(comparison, entry.name), _bands(comparison, entry.name, count, by))
            for entry in comparison.study.entries
        ])
        for count in comparison.study.workers
    ]  # fmt: skip
    return _curves(name, title, panels, by, "All recipes together, a panel for each worker count.")


def scores_by_workers(comparison: Comparison, by: str, *, name: str, title: str) -> Figure:
    """A panel for each recipe, a line for each number of workers."""
    counts = comparison.study.workers
    shades = np.linspace(0.12, 0.74, max(2, len(counts)))
    panels = [
        (entry.name, [
            (f"{count} worker" + "s" * (count > 1), _shade(shades[position], position),
             _bands(comparison, entry.name, count, by))
            for position, count in enumerate(counts)
        ])
        for entry in comparison.study.entries
    ]  # fmt: skip
    return _curves(
        name, title, panels, by, "A panel for each recipe, a line for each worker count."
    )


def _shade(share: float, position: int) -> dict[str, Any]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return {"color": to_hex(colormaps["viridis"](share)), "linestyle": LINES[position % len(LINES)]}


def _bands(comparison: Comparison, name: str, workers: int, by: str) -> Band | None:
    return bands(comparison.groups[name, workers].ended, by)


Panel = tuple[str, list[tuple[str, dict[str, Any], Band | None]]]


def _curves(name: str, title: str, panels: list[Panel], by: str, about: str) -> Figure:
    drawn = [panel for panel in panels if any(found is not None for *_, found in panel[1])]
    caption = (
        f"{about} Mean return of the last 100 episodes; interquartile mean over seeds, with its "
        "95 % interval where there are several. A run that has ended keeps its last value."
    )

    def paint(pyplot: Any) -> Any:
        across = min(3, max(1, len(drawn)))
        down = -(-max(1, len(drawn)) // across)
        figure, grid = pyplot.subplots(
            down, across, figsize=(3.3 * across + 1.6, 2.7 * down + 0.5), sharex=True, sharey=True,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        for axes in grid.flat[len(drawn) :]:
            axes.set_visible(False)
        for axes, (heading, lines) in zip(grid.flat, drawn, strict=False):
            _panel(axes, heading, lines, by)
        figure.supxlabel("seconds" if by == BY_TIME else "agent steps", color=INK, fontsize=9.5)
        figure.supylabel("return", color=INK, fontsize=9.5)
        labels = {label: h for axes in grid.flat for h, label in _handles(axes)}
        figure.legend(labels.values(), labels, loc="outside right upper", fontsize=9)
        return figure

    texts = [
        f"{heading}, {label}: {number(found.middle[-1])} at the end"
        for heading, lines in drawn
        for label, _, found in lines
        if found is not None
    ]
    return Figure(name, title, caption, f"{title}. " + "; ".join(texts) + ".", paint)


def _panel(
    axes: Any, heading: str, lines: list[tuple[str, dict[str, Any], Band | None]], by: str
) -> None:
    axes.set_title(heading)
    axes.grid()
    for label, look, found in lines:
        if found is None:
            continue
        kind = {"color": look["color"], "linestyle": look["linestyle"]}
        axes.plot(found.at, found.middle, lw=1.6, label=label, **kind)
        if found.low is not None:
            axes.fill_between(
                found.at, found.low, found.high, color=look["color"], alpha=0.16, lw=0
            )
    if by == BY_STEPS:
        axes.xaxis.set_major_formatter(lambda value, _: short(value))


def _handles(axes: Any) -> list[tuple[Any, str]]:
    return list(zip(*axes.get_legend_handles_labels(), strict=True))
