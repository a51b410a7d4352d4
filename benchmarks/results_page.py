"""Makes docs/results.md, and the README's two tables, from benchmarks/results/.

    make results

The prose is in benchmarks/results_page.md, where each line ``<!-- table NAME -->`` is replaced by a
table. In the README, tables lie between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import commits
import results_learning as learning
import results_planning as planning
import results_ray as ray
import results_readme
import results_resuming as resuming
import results_speed as speed
import results_studies as studies
from commits import HERE, ROOT
from results_tables import Row, Table

TEMPLATE = HERE / "results_page.md"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
MADE = (
    "<!-- Made by `make results` from benchmarks/results_page.md and benchmarks/results/. -->\n\n"
)


def is_present(row: Row) -> bool:
    """Rows of values that the presets no longer give are not shown: measure them again."""
    return not row.origin.values_changed()


TABLES: dict[str, Callable[[], Table]] = {
    "learning": learning.learning,
    "study cartpole": lambda: studies.study("cartpole"),
    "study lunarlander": lambda: studies.study("lunarlander"),
    "staleness solved": studies.staleness_solved,
    "staleness best": studies.staleness_best,
    "adagrad": studies.adagrad,
    "lag": studies.lag,
    "planning": planning.episodes,
    "sweeping": planning.sweeping,
    "dyna": planning.dyna,
    "soak": learning.soak,
    "campaigns": learning.campaigns,
    "resume kills": resuming.kills,
    "hand-over": resuming.hand_over,
    "checkpoints": resuming.checkpoints,
    "serial": resuming.serial,
    "small-networks": resuming.small_networks,
    "peers": speed.peers,
    "libraries": speed.libraries,
    "start-up": speed.start_up,
    "guard": speed.guard,
    "busy": speed.busy,
    "workers": speed.workers,
    "waiting": speed.waiting,
    "cost": speed.cost,
    "saturation": speed.saturation,
    "allreduce": speed.allreduce,
    "prioritized": speed.prioritized,
    "acting": speed.acting,
    "dense": speed.dense,
    "backend": speed.backend,
    "ray carried": ray.carried,
    "ray faults": ray.faults,
    "ray learning": ray.learning,
    "ray many": ray.many,
    "ray memory": ray.memory,
    "ray speed": ray.speed,
    "ray waiting": ray.waiting,
    "others": speed.others,
}


def page() -> str:
    def table(match: re.Match[str]) -> str:
        return TABLES[match[1]]().where(is_present).with_origin()

    return MADE + re.sub(r"^<!-- table (.+?) -->$", table, TEMPLATE.read_text(), flags=re.M)


def dropped() -> dict[str, list[str]]:
    """By table: rows that are not shown. Measure them again, or take them out of the files."""
    tables = {name: make().where(lambda row: not is_present(row)) for name, make in TABLES.items()}
    return {name: [" ".join(r.cells[:2]) for r in t.rows] for name, t in tables.items() if t.rows}


def readme() -> str:
    """The README with new tables. The rest of its text is kept."""
    text = README.read_text(encoding="utf-8")
    for name, made in (("results", results_readme.results), ("speed", results_readme.speed)):
        block = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
        if not re.search(block, text, re.S):
            raise SystemExit(f"README.md has no place for {name}: write <!-- {name}:begin -->")
        table = made()
        text = re.sub(block, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", text, flags=re.S)  # type: ignore[misc]
    return text


def stale(path: Path, wanted: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != wanted


def main() -> int:
    for path, made in ((PAGE, page()), (README, readme())):
        print(path.relative_to(ROOT), "written" if stale(path, made) else "is unchanged")
        path.write_text(made, encoding="utf-8")
    for name, rows in dropped().items():
        print(f"dropped from {name}, of other values than now: {', '.join(rows)}")
    if commits.save():
        print(commits.FILE.relative_to(ROOT), "written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
