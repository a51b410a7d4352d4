"""The text of `--help`: every option with its meaning, its choices and its default."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from manyhands.cli.arguments import TrainFlags, Words, as_text, read
from manyhands.config import plans, presets, registry, sections

FLAG_WIDTH = 32
NARROW = 70  # columns; below that an option's text is on its own lines


@dataclass(frozen=True)
class Entry:
    """A command as its help shows it."""

    name: str
    usage: str
    about: str
    flags: type


def columns() -> int:
    """Columns to wrap at: COLUMNS, or those of the terminal, or 80 in a pipe."""
    return shutil.get_terminal_size().columns


def overview(entries: Sequence[Entry], width: int) -> str:
    first = "manyhands: deep reinforcement learning in which the way of sharing the work is a flag"
    tasks = f"tasks: {', '.join(presets.names('tasks'))}, or any environment id"
    lines = [_wrapped(f"  manyhands {e.name} {e.usage}", e.about, width, 28) for e in entries]
    more = "manyhands COMMAND --help shows the options of a command"
    return "\n".join([_filled(first, width), "", *lines, "", _filled(tasks, width), more])


def of(entry: Entry, words: Words, width: int) -> str:
    """`words`: the other arguments, because a task and a recipe change defaults."""
    plan = _plan(words) if entry.name == "train" else None
    values = {} if plan is None else vars(plan.top)
    head = [f"manyhands {entry.name} {entry.usage} [OPTIONS]", f"  {entry.about}", ""]
    lines = [
        option(f"--{f.name}", f, values.get(f.name, f.default), width, names().get(f.name, ()))
        for f in fields(entry.flags)
    ]
    if plan is None:
        return "\n".join([*head, *lines])
    sections = f"sections in use, with the values of {plan.task} by {plan.top.recipe}:"
    lines += ["", _filled(sections, width)]
    for section, made in plan.sections.items():
        for f in fields(made):
            lines.append(option(f"--{section}.{f.name}", f, getattr(made, f.name), width))
    return "\n".join([*head, *lines])


def _plan(words: Words) -> plans.Plan:
    typed = read(words, TrainFlags, sections=True)
    tops = {field.name for field in fields(sections.Top)}
    top = {name: value for name, value in typed.own.items() if name in tops}
    return plans.resolve(typed.place or "lunarlander", {"run": top})


def names() -> Mapping[str, Sequence[str]]:
    """The choices of flags that name a file of a room or a preset."""
    rooms = {"algorithm": "algorithms", "strategy": "strategies", "backend": "backends"}
    recipes = presets.names("recipes")
    found = {flag: registry.names(room) for flag, room in rooms.items()}
    return {**found, "recipe": recipes, "recipes": recipes}


def option(
    flag: str, field: Field[Any], value: Any, width: int, choices: Sequence[str] = ()
) -> str:
    legal = ", ".join(choices or field.metadata.get("choices", ()))
    text = field.metadata.get("doc", "") + (f" ({legal})" if legal else "")
    return _wrapped(f"  {flag.replace('_', '-')}", f"{text} [{_default(value)}]", width, FLAG_WIDTH)


def _default(value: Any) -> str:
    if value is None or value in ("", ()):
        return "none"
    return as_text(value).lower() if isinstance(value, bool) else as_text(value)


def _wrapped(left: str, text: str, width: int, column: int) -> str:
    """Two columns, wrapped; in a narrow terminal the second is below the first.

    Width 0: one line, however long.
    """
    line = f"{left:{column + 2}} {text}"
    if not width or len(line) <= width:
        return line
    if width < NARROW:
        return "\n".join([left, *(f"      {line}" for line in _lines(text, width - 6))])
    indent = " " * (column + 3)
    first = f"{left:{column + 2}} " if len(left) < len(indent) else f"{left}\n{indent}"
    return first + f"\n{indent}".join(_lines(text, width - len(indent)))


def _filled(text: str, width: int) -> str:
    return "\n".join(_lines(text, width)) if width else text


def _lines(text: str, width: int) -> list[str]:
    """Does not break names, so that they can be copied."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
