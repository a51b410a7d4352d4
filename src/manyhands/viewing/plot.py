"""Draws the curves of one or more runs as a PNG, from their metrics.jsonl."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.config import runfiles
from manyhands.runs import metrics, metrics_reading, rundir
from manyhands.runs.metrics_reading import AVERAGE, EPISODE, EVALUATION, SPEED, Row
from manyhands.types import BadRequest, Failure

NAMES = (AVERAGE, EPISODE, EVALUATION, SPEED)
DOTS = 3000  # the most episodes drawn


class Series(NamedTuple):
    steps: list[float]
    minutes: list[float]
    values: list[float]


class Curves(NamedTuple):
    name: str
    series: dict[str, Series]


def plot(runs: Sequence[Path], *, out: str = "") -> Path:
    """Draws all runs into one picture; returns its path."""
    pyplot = headless_pyplot()
    default = runs[0] / "curves.png" if len(runs) == 1 else Path("curves.png")
    path = Path(out) if out else default
    if out:
        check(path)
    curves = [read(run) for run in runs]
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for number, one in enumerate(curves):
        _draw(axes, one, f"C{number}", alone=len(curves) == 1)
    _name(axes)
    if len(curves) == 1:
        figure.suptitle(curves[0].name)
        axes[1].get_legend().remove()
        axes[2].get_legend().remove()
    return save(figure, path)


def check(path: Path) -> None:
    """Refuses a path that no picture can be written to, before the work that draws it."""
    headless_pyplot()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = FigureCanvasAgg.get_supported_filetypes()
    if (suffix := path.suffix.removeprefix(".")) and suffix.lower() not in known:
        raise BadRequest(f"--out {path}: {suffix!r} is no format of a picture", "use .png or .svg")
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EISDIR, "it is a folder" if path.is_dir() else "it is a device")
        runfiles.try_to_write(path.parent)
    except OSError as error:
        what = f"--out {path} cannot be written: {runfiles.reason(error)}"
        raise BadRequest(what, "choose another --out") from error


def save(figure: Any, path: Path) -> Path:
    """Writes the picture in the format of its suffix, and closes it."""
    try:
        with runfiles.replacing(path) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # an emoji in a run's name
            figure.savefig(file, dpi=110, format=path.suffix.removeprefix(".") or "png")
    except (OSError, ValueError) as error:  # ValueError: an unknown suffix
        why = runfiles.reason(error) if isinstance(error, OSError) else str(error)
        raise Failure(f"could not write {path}: {why}", "choose another --out") from error
    finally:
        headless_pyplot().close(figure)
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
        with runfiles.opened(folder.path) as files:
            rows = list(metrics_reading.rows(files, NAMES))
    except OSError as error:
        what = f"{run} has no metrics to read: {runfiles.reason(error)}"
        remedies = {errno.ENOENT: "has it trained yet?", errno.EFBIG: metrics.CUT}
        remedy = remedies.get(error.errno or 0, f"replace its {metrics.METRICS} by a good copy")
        raise BadRequest(what, remedy) from error
    # A killed and resumed run has rows for some steps twice.
    rows.sort(key=lambda row: row["agent_steps"])
    series = {name: _series(rows, name) for name in NAMES}
    if not any(one.values for one in series.values()):
        raise BadRequest(f"{run} has no metrics yet", "train for some seconds first")
    name = os.fsencode(run.resolve().name).decode("utf-8", "replace")  # in any locale
    return Curves(name, series)


def _series(rows: list[Row], name: str) -> Series:
    having = [row for row in rows if name in row]
    return Series(
        [row["agent_steps"] for row in having],
        [row["wall_s"] / 60 for row in having],
        [row[name] for row in having],
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
        style = {"color": colour, "markeredgecolor": "black"}
        name = "evaluations" if alone else None
        axes[0].plot(evaluated.steps, evaluated.values, "D", markersize=5, label=name, **style)
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
