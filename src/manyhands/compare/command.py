"""``manyhands compare``: from what was typed to the report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from manyhands import rundir
from manyhands.compare import (
    display,
    figures,
    folder,
    gallery,
    groups,
    matrix,
    report,
    results,
    tables,
)
from manyhands.compare import study as studies
from manyhands.compare.runner import Runner
from manyhands.plot import headless_pyplot
from manyhands.signals import INTERRUPTED, StopRequests
from manyhands.types import BadRequest


def compare(place: str, own: Mapping[str, Any], sections: studies.Layer) -> int:
    """Exit code 0 when it ran as far as it was asked to, 130 when it was interrupted."""
    study = studies.read(place, own, sections)
    headless_pyplot()  # refused now rather than after an hour
    cells = matrix.cells(study)
    place_out = folder.opened(own.get("out", ""), study.task)
    place_out.check(cells)
    if own.get("draw") and not place_out.sittings.is_file():
        raise BadRequest("--draw has nothing to draw", "name a comparison's folder with --out")
    with folder.held(place_out):
        if own.get("retry"):
            _forget_failed(place_out, cells)
        if not own.get("draw") and _run(study, cells, place_out, own):
            print(f"stopped; go on with: {_go_on(place_out)}")
            return INTERRUPTED
        write(study, cells, place_out)
    print(f"report: {place_out.report}")
    return 0


def _run(
    study: studies.Study, cells: Sequence[matrix.Cell], out: folder.Folder, own: Mapping[str, Any]
) -> bool:
    """Whether somebody stopped it."""
    folder.sit_down(out, rundir.command_line())
    shown = display.make(study)
    try:
        with StopRequests() as stop:
            for sentence in _not_applicable(cells):
                shown.say(sentence)
            within_s = 60 * own.get("within_minutes", 0.0)
            Runner(study, out, shown, stop, within_s).run(matrix.in_order(study, cells))
            return stop.asked
    finally:
        shown.close()


def _not_applicable(cells: Sequence[matrix.Cell]) -> list[str]:
    told = {f"{cell.entry}, {cell.workers} workers": cell.refusal for cell in cells if cell.refusal}
    return [f"not applicable: {title}: {refusal}" for title, refusal in told.items()]


def _forget_failed(out: folder.Folder, cells: Sequence[matrix.Cell]) -> None:
    for cell in cells:
        if (out.outcome(cell) or {}).get("outcome") == folder.FAILED:
            out.clear(cell)


def _go_on(out: folder.Folder) -> str:
    """The same command, into the same folder."""
    command = rundir.command_line()
    named = any(word.partition("=")[0] == "--out" for word in shlex.split(command))
    return command if named else f"{command} --out {shlex.quote(str(out.path))}"


def write(study: studies.Study, cells: Sequence[matrix.Cell], out: folder.Folder) -> None:
    """Tables, figures and the report of what is there."""
    sittings = folder.sittings(out)
    cores = max((int(sitting["cores"]) for sitting in sittings), default=1)
    comparison = groups.compared(study, results.read(out, cells), cores=cores)
    tables.write(out.path, comparison, sittings)
    drawn = figures.draw(out.figures, gallery.figures(comparison))
    report.write(out.report, comparison, drawn, sittings)
