"""Where the time goes, as stacked bars: by role and part, or computing against communicating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyhands.compare.figures import Figure
from manyhands.compare.groups import Comparison, Group
from manyhands.roles.stopwatch import PARTS_OF_TIME

PARTS = {
    "env": ("#4477aa", ("env",)),
    "act": ("#7fc4d8", ("act",)),
    "sample": ("#e0b040", ("sample",)),
    "gradient": ("#cc6677", ("gradient",)),
    "pull": ("#228833", ("pull",)),
    "push": ("#8fbf5a", ("push",)),
    "idle": ("#b4b4b4", ("idle",)),
    "other": ("#808080", ("other",)),
}
KINDS = {
    "compute (act, sample, gradient)": ("#cc6677", ("act", "sample", "gradient")),
    "environment": ("#4477aa", ("env",)),
    "communicate (pull, push)": ("#228833", ("pull", "push")),
    "wait": ("#b4b4b4", ("idle",)),
    "other": ("#808080", ("other",)),
}
Kinds = Mapping[str, tuple[str, Sequence[str]]]


def shares(group: Group) -> dict[str, dict[str, float]]:
    """role -> part -> its share of the role's time, summed over seeds."""
    roles = dict.fromkeys(role for result in group.ended for role in result.time_split)
    found = {}
    for role in roles:
        splits = [r.time_split[role] for r in group.ended if role in r.time_split]
        seconds = {part: sum(split[part] for split in splits) for part in PARTS_OF_TIME}
        whole = sum(seconds.values()) or 1.0
        found[role] = {part: spent / whole for part, spent in seconds.items()}
    return found


def time_split(comparison: Comparison) -> Figure:
    caption = (
        "Shares of each role's time, summed over seeds. env: the environment steps; pull, push: "
        "parameters and gradients are shared; idle: it waits for others; other: the rest."
    )
    return _bars(comparison, "time_split", "Where the time goes, by role", caption, PARTS)


def compute_or_communicate(comparison: Comparison) -> Figure:
    caption = (
        "The same time by kind. More workers pay as long as the green part stays small. With more "
        "processes than cores, every part includes time in which a process had no core."
    )
    title = "Computing against communicating"
    return _bars(comparison, "compute_communicate", title, caption, KINDS)


def _bars(comparison: Comparison, name: str, title: str, caption: str, kinds: Kinds) -> Figure:
    rows = [
        (f"{group.name} · {group.workers}" + (f" · {role}" if len(roles) > 1 else ""), parts)
        for group in comparison.groups.values()
        for roles in [shares(group)]
        for role, parts in roles.items()
    ]

    def paint(pyplot: Any) -> Any:
        height = 0.27 * len(rows) + 1.1
        figure, axes = pyplot.subplots(figsize=(8.4, height), layout="constrained")
        for at, (_, parts) in enumerate(rows):
            _bar(axes, at, parts, kinds)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8.5)
        axes.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        figure.legend(loc="outside upper left", ncols=4, fontsize=9, handlelength=1)
        return figure

    alt = "; ".join(f"{label}: {_largest(parts, kinds)}" for label, parts in rows)
    return Figure(name, title, caption, f"{title}. {alt}.", paint)


def _bar(axes: Any, at: int, parts: Mapping[str, float], kinds: Kinds) -> None:
    left = 0.0
    for label, (colour, members) in kinds.items():
        width = sum(parts[member] for member in members)
        axes.barh(at, width, 0.72, left, color=colour, label=None if at else label, lw=0)
        if width > 0.07:
            axes.text(left + width / 2, at, f"{width:.0%}", ha="center", va="center", fontsize=7.5,
                      color="white" if colour not in LIGHT else "#1c2530")  # fmt: skip
        left += width


LIGHT = {"#7fc4d8", "#e0b040", "#8fbf5a", "#b4b4b4"}


def _largest(parts: Mapping[str, float], kinds: Kinds) -> str:
    sums = {label: sum(parts[m] for m in members) for label, (_, members) in kinds.items()}
    ranked = sorted(sums.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{label} {share:.0%}" for label, share in ranked if share >= 0.005)
