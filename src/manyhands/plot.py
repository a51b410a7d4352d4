"""Curves of one run or several as a PNG, from their metrics.jsonl."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import rundir
from manyhands.types import BadRequest, Failure

AVERAGE, EPISODE = "charts/return_mean_100", "charts/episodic_return"
EVALUATION, SPEED = "charts/evaluation_return", "charts/SPS"
DOTS = 3000  # episodes drawn at most


class Series(NamedTuple):
    steps: list[int]
    minutes: list[float]
    values: list[float]


class Curves(NamedTuple):
    name: str
    series: dict[str, Series]


def plot(runs: Sequence[Path], *, out: str = "") -> Path:
    """Draws all runs into one picture; returns its path."""
    pyplot = headless_pyplot()
    curves = [read(run) for run in runs]
    default = runs[0] / "curves.png" if len(runs) == 1 else Path("curves.png")
    path = Path(out) if out else default
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for number, one in enumerate(curves):
        _draw(axes, one, f"C{number}", alone=len(curves) == 1)
    _name(axes)
    if len(curves) == 1:
        figure.suptitle(curves[0].name)
        axes[1].get_legend().remove()
        axes[2].get_legend().remove()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:  # ValueError: a suffix it does not know
        raise Failure(f"could not write {path}: {error}", "choose another --out") from error
    finally:
        pyplot.close(figure)
    return path


def headless_pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise BadRequest(
            "plots need matplotlib, which is not installed", 'pip install "manyhands[plots]"'
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


# --- Reading ------------------------------------------------------------------------------------


def read(run: Path) -> Curves:
    folder = rundir.existing(run)
    try:
        lines = (folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        what = f"{run} has no metrics to read: {type(error).__name__}"
        raise BadRequest(what, "has it trained yet?") from error
    rows = [row for row in map(_row, lines) if row is not None]
    # A run that was killed and resumed has played some steps twice.
    rows.sort(key=lambda row: float(row["agent_steps"]))
    names = (AVERAGE, EPISODE, EVALUATION, SPEED)
    series = {name: _series(rows, name) for name in names}
    if not any(one.values for one in series.values()):
        raise BadRequest(f"{run} has no metrics yet", "train for some seconds first")
    return Curves(run.resolve().name, series)


def _row(line: str) -> dict[str, Any] | None:
    """None where the line is none of ours, as a kill may leave the last one."""
    try:
        row = json.loads(line)
        float(row["agent_steps"]), float(row["wall_s"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return dict(row)


def _series(rows: list[dict[str, Any]], name: str) -> Series:
    mine = [row for row in rows if isinstance(row.get(name), int | float)]
    return Series(
        [row["agent_steps"] for row in mine],
        [row["wall_s"] / 60 for row in mine],
        [row[name] for row in mine],
    )


# --- Drawing ------------------------------------------------------------------------------------


def _draw(axes: Any, curves: Curves, colour: str, *, alone: bool) -> None:
    average, episodes = curves.series[AVERAGE], curves.series[EPISODE]
    evaluated, speed = curves.series[EVALUATION], curves.series[SPEED]
    if alone:
        every = 1 + len(episodes.values) // DOTS
        dots = {"color": colour, "alpha": 0.25, "markersize": 2, "label": "episodes"}
        axes[0].plot(episodes.steps[::every], episodes.values[::every], ".", **dots)
    label = "mean of the last 100" if alone else curves.name
    axes[0].plot(average.steps, average.values, color=colour, label=label)
    if evaluated.values:
        marks = {"color": colour, "markeredgecolor": "black"}
        name = "evaluations" if alone else None
        axes[0].plot(evaluated.steps, evaluated.values, "D", markersize=5, label=name, **marks)
    axes[1].plot(average.minutes, average.values, color=colour, label=curves.name)
    axes[2].plot(speed.minutes, speed.values, color=colour, label=curves.name)


def _name(axes: Any) -> None:
    texts = (
        ("return by experience", "agent steps", "return"),
        ("return by time", "minutes", "return, mean of the last 100"),
        ("speed", "minutes", "agent steps/s"),
    )
    for axis, (title, across, up) in zip(axes, texts, strict=True):
        axis.set(title=title, xlabel=across, ylabel=up)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    axes[2].set_ylim(bottom=0)
    axes[0].xaxis.set_major_formatter("{x:,.0f}")
    axes[0].tick_params(axis="x", rotation=20)
