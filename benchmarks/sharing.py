"""The speed-ups and costs of sharing: two workers, waiting environments, pull and push, shards.

    make bench-sharing
    python benchmarks/sharing.py --only cost,size           # some sections
    python benchmarks/sharing.py --resume                   # only what is missing

Every figure is a ratio or has its reference beside it, measured interleaved in `--rounds`
rounds (four); the median counts. Each round is written to benchmarks/results/sharing.json when it
ends, so a kill loses one round. Takes about 15 minutes on two cores without other load.

workers     two workers on two cores against one with one thread            sharing_runs.py
waiting     1, 16 and 32 workers whose environment waits 5 ms a step        sharing_runs.py
cost        pull and push of 1.7 million parameters against a gradient      sharing_costs.py
size        both against the number of parameters and the batch, drawn      sharing_costs.py
saturation  how many gradients 1, 2 and 4 shards take                       sharing_saturation.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from speed import machine

HERE = Path(__file__).parent
SECTIONS = ("workers", "waiting", "cost", "saturation", "size")
Row = dict[str, Any]


class Book:
    """The results, written after every round. Ratios are taken inside a cell only."""

    def __init__(self, path: Path, *, rounds: int, smoke: bool, resume: bool) -> None:
        self.path, self.rounds, self.smoke, self._resume = path, rounds, smoke, resume
        self.results: Row = json.loads(path.read_text()) if path.exists() else {}
        self.results |= {"command": "make bench-sharing"}
        if measured_on := self.results.pop("machine", None):  # an old file: one machine for all
            for section in SECTIONS:
                for cell in self.results.get(section, {}).values():
                    cell.setdefault("machine", measured_on)

    def begin(self, section: str, name: str, **settings: Any) -> Cell:
        cells = self.results.setdefault(section, {})
        if name not in cells or not self._resume:
            cells[name] = {**_circumstances(), **settings, "rounds": []}
        return Cell(self, name, cells[name])

    def write(self) -> None:
        half = self.path.with_suffix(".half")
        half.write_text(json.dumps(self.results, indent=1) + "\n")
        half.replace(self.path)


class Cell:
    def __init__(self, book: Book, name: str, kept: Row) -> None:
        self._book, self.name, self.kept = book, name, kept

    @property
    def complete(self) -> bool:
        return len(self.rows) >= self._book.rounds

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = self.kept["rounds"]
        return rows

    def to_do(self) -> Iterator[int]:
        """The missing rounds. What is measured first in one round is last in the next."""
        yield from range(len(self.rows), self._book.rounds)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.kept["median"] = medians(self.rows)
        self._book.write()
        print(self.name, json.dumps(row), flush=True)

    def conclude(self, **words: Any) -> None:
        self.kept |= words
        self._book.write()
        print(f"== {self.name}:", json.dumps(words), flush=True)


def _circumstances() -> Row:
    from manyhands.runs import provenance

    command = " ".join(["python", "benchmarks/sharing.py", *sys.argv[1:]])
    where = {"machine": machine(), "load_before": os.getloadavg()[0]}
    return {"commit": provenance.commit(), "command": command, **where}


def medians(rows: list[Row]) -> Row:
    """The median of every number that all rows have, at any depth."""
    found: Row = {}
    for name, value in rows[0].items():
        there = [row[name] for row in rows if name in row]
        if isinstance(value, dict):
            found[name] = medians(there)
        elif isinstance(value, int | float):
            found[name] = round(statistics.median(there), 4)
    return found


def measure(section: str, book: Book, options: argparse.Namespace) -> None:
    if section in ("workers", "waiting"):
        import sharing_runs

        if section == "workers":
            sharing_runs.workers(book)
        else:
            sharing_runs.waiting(book, options.recipes.split(","))
        return
    import torch

    torch.set_num_threads(1)
    if section == "saturation":
        import sharing_saturation

        sharing_saturation.saturation(book)
    else:
        import sharing_costs

        getattr(sharing_costs, section)(book)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument(
        "--recipes",
        default="hogwild,downpour,distributed-dqn,ad-psgd,sync,apex,impala",
        help="recipes of the section waiting",
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--resume", action="store_true", help="keep existing rounds")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sharing.json")
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny trial; writes to a temporary folder"
    )
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"--only {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    if options.smoke:
        options.rounds = 1
        options.out = Path(tempfile.mkdtemp()) / "sharing.json"
    book = Book(options.out, rounds=options.rounds, smoke=options.smoke, resume=options.resume)
    for section in (name for name in SECTIONS if name in wanted):
        measure(section, book, options)
    print(f"-> {book.path}")


if __name__ == "__main__":
    main()
