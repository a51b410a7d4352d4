"""``manyhands compare``: runs a study and writes its report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

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
from manyhands.runs import provenance
from manyhands.runs.signals import INTERRUPTED, StopRequests
from manyhands.types import BadRequest
from manyhands.viewing.plot import headless_pyplot


def compare(task: str, options: Mapping[str, Any], sections: studies.Layer) -> int:
    """The exit code: 0 if it ran as far as asked, 130 if it was interrupted."""
    study = studies.read(task, options, sections)
    headless_pyplot()  # a missing matplotlib is refused now, not after an hour
    cells = matrix.cells(study)
    out = folder.open_folder(options.get("out", ""), study.task)
    out.check(cells)
    if options.get("draw") and not out.invocations.is_file():
        raise BadRequest("--draw has nothing to draw", "name a comparison's folder with --out")
    with folder.exclusive(out):
        if options.get("retry"):
            _forget_failed(out, cells)
        if not options.get("draw") and _run(study, cells, out, options):
            print(f"stopped; continue with: {_resume_command(out)}")
            return INTERRUPTED
        write(study, cells, out)
    print(f"report: {out.report}")
    return 0


def _run(
    study: studies.Study,
    cells: Sequence[matrix.Cell],
    out: folder.Folder,
    options: Mapping[str, Any],
) -> bool:
    """Whether it was stopped by a signal."""
    folder.add_invocation(out, provenance.command_line())
    shown = display.make(study)
    try:
        with StopRequests() as stop:
            for sentence in _not_applicable(cells):
                shown.say(sentence)
            within_s = 60 * options.get("within_minutes", 0.0)
            Runner(study, out, shown, stop, within_s).run(matrix.in_order(study, cells))
            return stop.asked
    finally:
        shown.close()


def _not_applicable(cells: Sequence[matrix.Cell]) -> list[str]:
    refused = {f"{c.entry}, {c.workers} workers": c.refusal for c in cells if c.refusal}
    refused = {title: why for title, why in refused.items() if why != matrix.NOT_ASKED}
    return [f"not applicable: {title}: {refusal}" for title, refusal in refused.items()]


def _forget_failed(out: folder.Folder, cells: Sequence[matrix.Cell]) -> None:
    for cell in cells:
        if (out.outcome(cell) or {}).get("outcome") == folder.FAILED:
            out.clear(cell)


def _resume_command(out: folder.Folder) -> str:
    """The same command, with the same folder."""
    command = provenance.command_line()
    named = any(word.partition("=")[0] == "--out" for word in shlex.split(command))
    return command if named else f"{command} --out {shlex.quote(str(out.path))}"


def write(study: studies.Study, cells: Sequence[matrix.Cell], out: folder.Folder) -> None:
    """Writes tables, figures and the report of the cells that have ended."""
    invocations = folder.invocations(out)
    cores = max((int(invocation["cores"]) for invocation in invocations), default=1)
    comparison = groups.compared(study, results.read(out, cells), cores=cores)
    tables.write(out.path, comparison, invocations)
    drawn = figures.draw(out.figures, gallery.figures(comparison))
    report.write(out.report, comparison, drawn, invocations)
