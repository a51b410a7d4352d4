"""What `manyhands plan` predicts against what runs reach: steps, updates and staleness.

    python benchmarks/plan_validation.py --part waiting       # and --part lunarlander
    python benchmarks/plan_validation.py --part waiting --strategies lock,gossip

Each call measures the costs first, as the command does, then runs the cells that are missing: each
trains some seconds after all workers have learned. A cell is compared with the prediction from the
costs of its own call, as the machine's speed changes between calls. A killed call loses one cell.
Writes benchmarks/results/plan-validation.json. Needs a machine without other load: about a minute
for the costs and ten seconds for every cell.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from manyhands.planning import measuring, simulation, ways, windows
from manyhands.planning.costs import Costs, Site
from manyhands.runs import provenance
from manyhands.types import machine as here
from speed import machine

Row = dict[str, Any]
PATH = Path(__file__).parent / "results" / "plan-validation.json"
PARTS: dict[str, tuple[ways.Flags, tuple[int, ...]]] = {
    "waiting": ({"run": {}, "env": {"wait_ms": 5.0}}, (1, 2, 4, 8, 16, 32)),
    "lunarlander": ({"run": {}}, (1, 2, 4)),
}
SETTINGS = {
    "waiting": "lunarlander --env.wait-ms 5",
    "lunarlander": "lunarlander",
}
SECONDS = 2.5
BAR = 0.15  # the median of all errors
MEASURES = ("agent_steps_per_s", "updates_per_s", "staleness")
LEAST_STALENESS = 1.0  # below, an error is a share of this: half an update is not 100 %


class Book:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.results: Row = json.loads(path.read_text()) if path.exists() else {}
        self.results |= {"command": "python benchmarks/plan_validation.py", "bar": BAR}

    def cells(self, part: str) -> Row:
        found: Row = self.results.setdefault(part, {"run": SETTINGS[part]}).setdefault("cells", {})
        return found

    def write(self) -> None:
        errors = [cell["errors"][m] for part in PARTS if part in self.results
                  for cell in self.cells(part).values() for m in MEASURES]  # fmt: skip
        if errors:
            self.results["errors"] = len(errors)
            self.results["median_error"] = round(statistics.median(errors), 4)
        half = self._path.with_suffix(".half")
        half.write_text(json.dumps(self.results, indent=1) + "\n")
        half.replace(self._path)


def run(part: str, strategies: list[str], book: Book, until_s: float) -> None:
    flags, counts = PARTS[part]
    cells = book.cells(part)
    chosen = [one for one in ways.of("lunarlander", flags) if not strategies
              or one.way.name in strategies]  # fmt: skip
    missing = [(one, n) for n in counts for one in chosen if f"{one.way.name} {n}" not in cells]
    if not missing:
        return
    needed = [one for one in chosen if any(one is other for other, _ in missing)]
    costs = measuring.measure(needed, lambda line: print(line, flush=True))
    for one, workers in missing:
        if time.monotonic() > until_s:
            print("out of time: the same command continues")
            return
        cells[f"{one.way.name} {workers}"] = cell = compare(part, one, workers, costs)
        book.write()
        print(one.way.name, workers, json.dumps(cell), flush=True)


def compare(part: str, one: ways.Chosen, workers: int, costs: Costs) -> Row:
    outcome = simulation.simulate(one.way, costs, Site(here.cores()), workers)
    predicted = {name: getattr(outcome, name) for name in MEASURES}
    with windows.started(one.plan(workers)) as watched:
        watched.await_updates()
        seen = watched.calm_window(SECONDS)
    measured = {
        "agent_steps_per_s": seen.steps / seen.seconds,
        "updates_per_s": seen.updates / seen.seconds,
        "staleness": seen.staleness,
    }
    return {
        "commit": provenance.commit(),
        "command": f"python benchmarks/plan_validation.py --part {part}",
        "machine": machine(),
        "gradient_ms": round(1e3 * costs.gradient_s, 4),
        "others_cores": round(seen.others, 3),
        "predicted": {name: round(value, 3) for name, value in predicted.items()},
        "measured": {name: round(value, 3) for name, value in measured.items()},
        "errors": {m: round(error(m, predicted[m], measured[m]), 4) for m in MEASURES},
    }


def error(measure: str, predicted: float, measured: float) -> float:
    """A share of what was measured."""
    least = LEAST_STALENESS if measure == "staleness" else 1e-9
    return abs(predicted - measured) / max(least, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=tuple(PARTS), required=True)
    parser.add_argument("--strategies", default="", help="separated by commas; default: all")
    parser.add_argument("--minutes", type=float, default=6.0, help="start no cell after so many")
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    book = Book(options.out)
    until_s = time.monotonic() + 60 * options.minutes
    run(options.part, [s for s in options.strategies.split(",") if s], book, until_s)
    book.write()
    print(f"median error {book.results.get('median_error')} -> {options.out}")


if __name__ == "__main__":
    main()
