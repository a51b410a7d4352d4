"""Tables of the results page: their rows and how they are written as Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from commits import HERE
from provenance import Origin

RESULTS = HERE / "results"
ORIGIN = ["commit", "date", "machine", "changed since"]


class Row(NamedTuple):
    cells: list[str]
    origin: Origin


class Table(NamedTuple):
    columns: list[str]
    rows: list[Row]

    def with_origin(self) -> str:
        rows = ([*row.cells, *row.origin.cells()] for row in self.rows)
        return markdown([*self.columns, *ORIGIN], rows)

    def where(self, wanted: Callable[[Row], bool]) -> Table:
        return Table(self.columns, [row for row in self.rows if wanted(row)])


def markdown(columns: list[str], rows: Iterable[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def files(pattern: str) -> list[Path]:
    return sorted(RESULTS.glob(pattern))


def joined(values: Iterable[str]) -> str:
    """One value per seed, in order; one value if all are equal."""
    listed = list(values)
    return listed[0] if len(set(listed)) == 1 and len(listed) > 1 else " · ".join(listed)


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def link(name: str) -> str:
    return f"[{name}](../benchmarks/results/{name})"
