"""Where a row of results comes from, and whether its code or its values have changed since.

A row is marked

code  if what decides learning holds other code now than at the row's commit: the files of its
      algorithm, strategy and environment, maths, memories, networks, optimizers, actor and
      learner, and what these import (for a part of the house: the files of its folder).
      Comments and docstrings do not count.

A row is dropped if the presets of its recipe and task give other values now than at the row's
commit, or if its learning rate decays and the decay ends elsewhere now. Comments, budgets and
sections that the run did not use do not count.

"Now" is the working tree, so that one commit holds a change and its marks.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import commits
from commits import PRESENT, Table
from manyhands import envs

NOT_VALUES = {"about", "keeps", "steps", "threshold", "evaluation", "checkpoint", "for", "like"}
LR_ENDS_BEFORE = {"dqn": 0.1, "double_q": 0.1}  # of others: 0.01
ALWAYS = {"env", "memory", "network", "optim"}  # sections that every run uses


class Origin(NamedTuple):
    """A row's commits (the newest last), its machine, and what it depends on."""

    commits: tuple[str, ...]
    machine: str
    parts: tuple[str, ...] = ()  # of the package: "algorithms/dqn", "backends"
    task: str = ""
    recipe: str = ""
    flags: frozenset[str] = frozenset()  # "section.field" that the command sets
    of_file: bool = False  # the row has no commit: it is that of the file
    measured: str = ""  # the date of the measurement, if the file has it; else the commit's counts

    def cells(self) -> list[str]:
        """Commit, date, machine, mark."""
        names = " ".join(f"`{commit[:7]}`" for commit in self.commits)
        dates = sorted({self.measured or commits.date(commit) for commit in self.commits})
        return [
            names + (" (of the file)" if self.of_file else ""),
            " … ".join(dict.fromkeys([dates[0], dates[-1]])),
            self.machine,
            self.mark(),
        ]

    def mark(self) -> str:
        return "code" if self.code_changed() else ""

    def values_changed(self) -> bool:
        if not self.recipe:
            return False
        now = values(PRESENT, self.task, self.recipe, self.flags)
        return any(values(c, self.task, self.recipe, self.flags) != now for c in self.commits)

    def code_changed(self) -> bool:
        return any(
            commits.code(commit, part) != commits.code(PRESENT, part)
            for commit in self.commits
            for part in self.parts
        )


def machine_of(results: Table) -> str:
    return short(results["machine"]["cpu"]) if "machine" in results else "not recorded"


def short(cpu: str) -> str:
    return cpu.partition("@")[0].strip().replace("(R)", "").removesuffix(" Processor")


# --- Values -------------------------------------------------------------------------------------


@cache
def values(commit: str, task: str, recipe: str, flags: frozenset[str]) -> Table:
    """The presets' values for this task and recipe that the run used."""
    tables = [preset(commit, "recipes", recipe), preset(commit, "tasks", task)]
    tables.append(tables[1].get("for", {}).get(recipe, {}))
    merged: Table = {}
    for table in tables:
        merged = merge(merged, table)
    for name in tables[0].get("keeps", ()):  # there the recipe wins
        merged = merge(merged, only(tables[0], name))
    used = ALWAYS | {str(merged.get("algorithm")), str(merged.get("strategy"))}
    kept: Table = {}
    for name, value in merged.items():
        if name in NOT_VALUES or (isinstance(value, dict) and name not in used):
            continue
        if isinstance(value, dict):
            kept |= {f"{name}.{k}": v for k, v in value.items() if f"{name}.{k}" not in flags}
        elif name not in flags:
            kept[name] = value
    decays = f"{merged.get('algorithm')}.lr_decay_steps"
    if decays in flags or kept.get(decays):
        kept["lr end"] = lr_end(commit, str(merged["algorithm"]))
    return kept


def lr_end(commit: str, algorithm: str) -> float:
    """Where the decay of the learning rate ends. Until maths/schedules.py it ended at a hundredth
    for algorithms of rollouts.
    """
    return commits.lr_end(commit) or LR_ENDS_BEFORE.get(algorithm, 0.01)


def preset(commit: str, kind: str, name: str) -> Table:
    table = commits.preset(commit, f"{kind}/{name}")
    if "like" not in table:
        return table
    below = preset(commit, kind, table["like"])
    return merge(below, table) | {"keeps": [*below.get("keeps", ()), *table.get("keeps", ())]}


def only(table: Table, name: str) -> Table:
    """One value of a preset, by its name: "section.field" or "field"."""
    section, dot, field = name.partition(".")
    return {section: {field: table[section][field]}} if dot else {name: table[name]}


def merge(below: Table, above: Table) -> Table:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parts_of(commit: str, recipe: str, task: str, strategy: str = "") -> tuple[str, ...]:
    """What decides how a recipe learns a task."""
    table = preset(commit, "recipes", recipe)
    id = preset(commit, "tasks", task).get("env", {}).get("id", task)
    return learning(table["algorithm"], strategy or table.get("strategy", "serial"), id)


def learning(algorithm: str, strategy: str, env_id: str) -> tuple[str, ...]:
    kind = envs.kind_of(env_id)
    return (f"{commits.LEARNING}algorithms/{algorithm} strategies/{strategy} envs/{kind}",)
