"""The report: one HTML file that needs no network, no script and no other file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from manyhands.compare.figures import Drawn
from manyhands.compare.findings import baseline_sentences, findings
from manyhands.compare.folder import FAILED, NOT_APPLICABLE, unwritable
from manyhands.compare.groups import Comparison, Group
from manyhands.compare.matrix import NOT_ASKED
from manyhands.compare.origin import elsewhere, sentence
from manyhands.compare.phrases import estimated, listed
from manyhands.config import runfiles
from manyhands.types.sizes import human

Invocations = Sequence[dict[str, Any]]
PAGE = Path(__file__).parent / "report.html"
SOLVE_COLUMNS = {
    "episodes_to_solve": "episodes to solve",
    "seconds_to_solve": "seconds to solve",
    "seconds_per_episode": "s per episode",
    "speed_up": "speed-up",
    "efficiency": "efficiency",
    "best_return_mean_100": "best return",
}
THROUGHPUT_COLUMNS = {
    "agent_steps_per_s": "agent steps/s",
    "updates_per_s": "updates/s",
    "speed_up": "speed-up",
    "efficiency": "efficiency",
    "sharing": "cost of sharing",
    "staleness_mean": "staleness",
}


def write(
    path: Path, comparison: Comparison, drawn: Sequence[Drawn], invocations: Invocations
) -> Path:
    text = page(comparison, drawn, invocations)
    try:
        with runfiles.replacing(path) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def page(comparison: Comparison, drawn: Sequence[Drawn], invocations: Invocations) -> str:
    study = comparison.study
    question = "solve it soonest" if comparison.is_solve else "do most in a second"
    origin = sentence(comparison, invocations)
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        task=escape(study.task),
        subtitle=escape(f"Which way of sharing the work would {question}? {_matrix(comparison)}"),
        findings=_list(findings(comparison)),
        outcomes=_outcomes(comparison, origin),
        table=_table(comparison, origin),
        contents=_contents(drawn),
        figures="\n".join(_figure(one) for one in drawn) or "<p>No cell has ended yet.</p>",
        bottlenecks=_bottlenecks(comparison, origin),
        baselines=_baselines(comparison, origin),
        exceptions=_exceptions(comparison, origin),
        facts=_facts(comparison, invocations),
    )


def _matrix(comparison: Comparison) -> str:
    study = comparison.study
    return (
        f"{len(study.entries)} recipes, {listed([str(n) for n in study.workers])} workers, "
        f"seeds {listed([str(n) for n in study.seeds])}, {study.limit} a cell."
    )


def _list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in sentences) + "</ul>"


# --- Tables -------------------------------------------------------------------------------------


def _rows(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", origin: str = ""
) -> str:
    """Cells are HTML already. The first of a row is its header. The origin is below the table."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{one}</td>" for one in rest) + "</tr>"
        for first, *rest in rows
    )
    shown = f'class="{kind}"' if kind else ""
    caption = f"<caption>{escape(origin)}</caption>" if origin else ""
    return (
        f'<div class="wide" tabindex="0"><table {shown}>{caption}<thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _outcomes(comparison: Comparison, origin: str) -> str:
    """recipe × workers: the outcomes of the seeds."""
    study = comparison.study
    head = ["recipe", *(f"{n} worker" + "s" * (n > 1) for n in study.workers)]
    rows = []
    for entry in study.entries:
        groups = [comparison.groups[entry.name, workers] for workers in study.workers]
        rows.append([escape(entry.name), *(_badge(comparison, group) for group in groups)])
    return _rows(head, rows, kind="outcomes", origin=origin)


def _badge(comparison: Comparison, group: Group) -> str:
    note = _marks(comparison, group)
    if group.refusal:
        return '<span class="badge none">not applicable</span>'
    ended = len(group.ended)
    if not ended:
        kind = "bad" if group.count(FAILED) else "none"
        return f'<span class="badge {kind}">{escape(group.notes) or "not run"}</span>{note}'
    if not comparison.is_solve:
        text, kind = f"{ended} measured", "good"
    else:
        text = f"solved {group.solved} of {ended}"
        kind = "good" if group.solved == ended else "some" if group.solved else "not"
    notes = f' <span class="note">{escape(group.notes)}</span>' if group.notes else ""
    return f'<span class="badge {kind}">{text}</span>{note}{notes}'


def _marks(comparison: Comparison, group: Group) -> str:
    marks = [("more busy processes than cores", "†")] * group.beyond_cores
    if others := elsewhere(comparison, group):
        seeds = listed([str(result.cell.seed) for result in others])
        marks.append((f"measured at another commit: seed {seeds}", "‡"))
    return "".join(f' <abbr title="{title}">{mark}</abbr>' for title, mark in marks)


def _table(comparison: Comparison, origin: str) -> str:
    columns = SOLVE_COLUMNS if comparison.is_solve else THROUGHPUT_COLUMNS
    head = ["recipe", "workers", "solved" if comparison.is_solve else "seeds", *columns.values()]
    rows = []
    for group in comparison.groups.values():
        if group.ended:
            ended = str(len(group.ended))
            count = f"{group.solved} of {ended}" if comparison.is_solve else ended
            shown = [_estimate(group, measure) for measure in columns]
            rows.append(
                [escape(group.name), f"{group.workers}{_marks(comparison, group)}", count, *shown]
            )
    if not rows:
        return "<p>No cell has ended yet.</p>"
    return _rows(head, rows, kind="numbers", origin=origin)


def _estimate(group: Group, measure: str) -> str:
    if measure not in group.measures:
        return "–"
    value, bracket, interval = estimated(measure, group.measures[measure]).partition(" [")
    if not bracket:
        return escape(value)
    return f'{escape(value)} <span class="interval">[{escape(interval)}</span>'


def _bottlenecks(comparison: Comparison, origin: str) -> str:
    rows = [
        [escape(group.name), f"{group.workers}{_marks(comparison, group)}", *_sentences(group)]
        for group in comparison.groups.values()
        if group.ended
    ]
    return _rows(["recipe", "workers", "bottleneck"], rows, origin=origin) if rows else ""


def _sentences(group: Group) -> list[str]:
    """The bottleneck sentence of every seed, without repetitions."""
    texts = dict.fromkeys(str(result.row["bottleneck"]) for result in group.ended)
    return ["<br>".join(escape(one) for one in texts)]


def _baselines(comparison: Comparison, origin: str) -> str:
    rows = [[escape(name), escape(base)] for name, base in baseline_sentences(comparison)]
    return _rows(["recipe", "baseline of its speed-up"], rows, origin=origin)


def _exceptions(comparison: Comparison, origin: str) -> str:
    """Failed cells by seed, and cells that make no sense once for all seeds."""
    odd = [r for r in comparison.results if r.row["outcome"] in (FAILED, NOT_APPLICABLE)]
    odd = [result for result in odd if result.cell.refusal != NOT_ASKED]
    alike = {}
    for result in odd:
        cell, row = result.cell, result.row
        seeds = f", seed {cell.seed}" if row["outcome"] == FAILED else ""
        title = f"{cell.entry}, {cell.workers} worker" + "s" * (cell.workers > 1) + seeds
        alike[title] = [escape(title), escape(row["outcome"]), escape(row["reason"])]
    if not alike:
        return "<p>None: every cell made sense and none failed.</p>"
    return _rows(["cell", "outcome", "reason"], alike.values(), origin=origin)


# --- Figures ------------------------------------------------------------------------------------


def _contents(drawn: Sequence[Drawn]) -> str:
    links = (f'<a href="#{d.figure.name}">{escape(d.figure.title)}</a>' for d in drawn)
    return '<nav aria-label="Figures">' + " ".join(links) + "</nav>" if drawn else ""


def _figure(drawn: Drawn) -> str:
    """As an image: identifiers inside one SVG must not clash with those of another."""
    figure = drawn.figure
    data = base64.b64encode(drawn.svg.encode()).decode()
    return (
        f'<figure id="{figure.name}"><h3>{escape(figure.title)}</h3>'
        f'<img alt="{escape(figure.alt)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


# --- Facts --------------------------------------------------------------------------------------


def _facts(comparison: Comparison, invocations: Invocations) -> str:
    texts: dict[str, str] = {}
    for name, pick in FACTS.items():
        values = list(dict.fromkeys(str(pick(invocation)) for invocation in invocations))
        texts[name] = "<br>".join(escape(value) for value in values) or "unknown"
    commits = {r.row["commit"] for r in comparison.results if r.row.get("commit")}
    texts["commit of the runs"] = "<br>".join(map(escape, sorted(commits))) or "unknown"
    if len(commits) > 1:
        texts["commit of the runs"] += "<br><strong>the code changed between cells</strong>"
    texts["seeds"] = ", ".join(map(str, comparison.study.seeds))
    texts["limit of a cell"] = escape(comparison.study.limit)
    texts["order"] = comparison.study.order_text
    return _rows(["", ""], [[escape(n), v] for n, v in texts.items()], kind="facts")


FACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "command": lambda s: s["command"],
    "started": lambda s: s["started"],
    "machine": lambda s: f"{s['machine']}, {human(s['memory_bytes'])} of memory",
    "cores": lambda s: s["cores"],
    "versions": lambda s: ", ".join(f"{k} {v}" for k, v in s["versions"].items() if k != "commit"),
}
