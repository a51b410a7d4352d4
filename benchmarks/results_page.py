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
import results_readme
import results_speed as speed
from commits import HERE, ROOT
from results_tables import Row, Table

TEMPLATE = HERE / "results_page.md"
PAGE = ROOT / "docs" / "results.md"
README = ROOT / "README.md"
MADE = (
    "<!-- Made by `make results` from benchmarks/results_page.md and benchmarks/results/. -->\n\n"
)


def is_present(row: Row) -> bool:
    return not row.origin.values_changed()


def is_older(row: Row) -> bool:
    return row.origin.values_changed()


TABLES: dict[str, Callable[[], Table]] = {
    "learning": lambda: learning.learning().where(is_present),
    "learning older": lambda: learning.learning().where(is_older),
    "study cartpole": lambda: learning.study("cartpole"),
    "study lunarlander": lambda: learning.study("lunarlander"),
    "soak": learning.soak,
    "campaigns": learning.campaigns,
    "peers": speed.peers,
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
    "others": speed.others,
}


def page() -> str:
    def table(match: re.Match[str]) -> str:
        return TABLES[match[1]]().with_origin()

    return MADE + re.sub(r"^<!-- table (.+?) -->$", table, TEMPLATE.read_text(), flags=re.M)


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
    if commits.save():
        print(commits.FILE.relative_to(ROOT), "written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
