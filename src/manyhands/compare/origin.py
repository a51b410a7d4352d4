"""Where a table's numbers come from: seeds, commit, machine and command.

The commit of a comparison is the one that most of its cells ran at. Cells of other commits are
marked ‡: a difference between them and the others may be one of the code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from manyhands.compare.groups import Comparison, Group
from manyhands.compare.phrases import listed
from manyhands.compare.results import Result

UNKNOWN = "unknown"
SHORT = 7  # characters of a commit


def commit_of(results: Sequence[Result]) -> str:
    """The commit of most cells, of several the one met first; empty if no cell names one."""
    counts = Counter(result.row["commit"] for result in results if result.row.get("commit"))
    return counts.most_common(1)[0][0] if counts else ""


def elsewhere(comparison: Comparison, group: Group) -> list[Result]:
    """The cells of a group that ended at another commit than most, or name none."""
    usual = commit_of(comparison.results)
    return [result for result in group.ended if result.row.get("commit") != usual]


def commits(results: Sequence[Result]) -> list[str]:
    """The commits of these cells, in order of appearance."""
    found = (result.row.get("commit") or UNKNOWN for result in results if result.ended)
    return list(dict.fromkeys(found))


def seeds(results: Sequence[Result]) -> list[int]:
    return sorted({result.cell.seed for result in results if result.ended})


def sentence(comparison: Comparison, invocations: Sequence[dict[str, Any]]) -> str:
    """For below a table. What is not known is said to be unknown, never left out."""
    machines = dict.fromkeys(f"{i['machine']}, {i['cores']} cores" for i in invocations)
    command = invocations[-1]["command"] if invocations else UNKNOWN
    more = f" (and {len(invocations) - 1} before)" if len(invocations) > 1 else ""
    return (
        f"Seeds: {', '.join(map(str, seeds(comparison.results))) or 'none has ended'}. "
        f"Commit: {_commits(comparison)}. "
        f"Machine: {listed(list(machines)) or UNKNOWN}. Command: {command}{more}."
    )


def _commits(comparison: Comparison) -> str:
    usual = commit_of(comparison.results) or UNKNOWN
    others = [name[:SHORT] for name in commits(comparison.results) if name != usual]
    return usual[:SHORT] + (f"; ‡ {listed(others)}" if others else "")
