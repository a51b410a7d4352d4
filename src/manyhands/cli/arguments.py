"""What may be typed: every command's flags, and how words become their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.config import registry, sections, values
from manyhands.types import BadRequest, option
from manyhands.viewing.flags import OwnFlags

Words = Sequence[str]


@dataclass(frozen=True)
class TrainFlags(sections.Top):
    out: str = option("", "the run's folder; without it one is made under runs/")
    network: str = option("", "short for --network.torso: a name, or my.py:Net")
    resume_if_exists: bool = option(False, "go on with --out if it is there already")
    print_config: bool = option(False, "show every value and where it came from; do not train")
    quiet: bool = option(False, "print nothing while training")


@dataclass(frozen=True)
class ResumeFlags(OwnFlags):
    steps: int = option(0, "the new total of agent steps; 0: as last asked for", low=0)
    minutes: float = option(0.0, "minutes to go on for, instead of steps", low=0)
    quiet: bool = option(False, "print nothing while training")


@dataclass(frozen=True)
class EvaluateFlags(OwnFlags):
    best: bool = option(False, "the best checkpoint instead of the newest")
    episodes: int = option(100, "episodes to play", low=1)
    epsilon: float | None = option(None, "random actions; without it the task's own", low=0, high=1)
    seed: int = option(1, "of the environments", low=0)
    json: bool = option(False, "print one line of JSON")


@dataclass(frozen=True)
class PlotFlags:
    out: str = option("", "the PNG; without it RUN/curves.png, or curves.png for several runs")


@dataclass(frozen=True)
class CompareFlags:
    recipes: str = option("", "which, as in dqn,hogwild; or variants that the --config names")
    workers: str = option("1,2", "numbers of workers, as in 1,2,4")
    seeds: str = option("3", "how many, from 1 on; or which, as in 3,7")
    metric: str = option("solve", "what is compared", choices=("solve", "throughput"))
    minutes: float = option(
        0.0, "of a cell at most; 0: ten to solve, a third of one to measure throughput", low=0
    )
    steps: int = option(0, "agent steps of a cell at most, instead of minutes", low=0)
    within_minutes: float = option(0.0, "begin no cell after so long; 0: run them all", low=0)
    config: str = option("", "a TOML file with the same words, and variants of recipes")
    out: str = option("", "the comparison's folder; one that is there goes on")
    order: int = option(1, "the seed of the order in which cells run", low=0)
    retry: bool = option(False, "run cells again that failed")
    draw: bool = option(False, "run nothing; write the report of what is there")
    threads: int = option(0, "of each cell, as for train", low=0)
    envs_per_worker: int = option(1, "of each cell, as for train", low=1)
    backend: str = option("auto", "of each cell, as for train")
    device: str = option("auto", "of each cell, as for train")
    threshold: float | None = option(None, "mean return of 100 episodes that counts as solved")


@dataclass(frozen=True)
class DoctorFlags:
    json: bool = option(False, "print one line of JSON")


@dataclass(frozen=True)
class NoFlags: ...


# --- Reading words ------------------------------------------------------------------------------


class Typed(NamedTuple):
    places: list[str]  # the words that are no flags
    own: dict[str, Any]  # the command's flags that were given, in their types
    sections: dict[str, dict[str, Any]]  # the texts of --section.field

    @property
    def place(self) -> str:
        return self.places[0] if self.places else ""


def read(words: Words, flags: type, *, most: int = 1, sections: bool = False) -> Typed:
    """What was typed; at most so many places."""
    known = {field.name: field for field in fields(flags)}
    typed, rest = Typed([], {}, {}), list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if len(typed.places) == most:
                raise BadRequest(f"{word!r} is one word too many", "see --help")
            typed.places.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if sections and "." in name:
            section, _, field = name.partition(".")
            text = value if equals else _value(word, rest)
            _note(typed.sections.setdefault(section, {}), field, text)
        elif name in known:
            is_switch = isinstance(known[name].default, bool)
            text = value if equals else ("true" if is_switch else _value(word, rest))
            typed.own[name] = values.checked(f"--{name.replace('_', '-')}", text, flags, name)
        else:
            raise registry.unknown("option", word, [f"--{n.replace('_', '-')}" for n in known])
    return typed


def _note(section: dict[str, Any], field: str, text: str) -> None:
    """A field's text; one argument's value where the field is a table of them."""
    table, dot, name = field.partition(".")
    if not dot:
        section[field] = text
    elif isinstance(arguments := section.setdefault(table, {}), dict):
        arguments[name] = values.literal(text)
    else:
        raise BadRequest(f"--….{table} and --….{field} were both given", "give one of them")


def _value(word: str, rest: list[str]) -> str:
    """The next word; a section's switch may stand alone."""
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    if "." in word:
        return "true"
    raise BadRequest(f"{word} needs a value", "see --help")


def as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "()"
    return str(value)


def run_path(command: str, path: str) -> Path:
    if not path:
        raise BadRequest(f"{command} needs a run", f"manyhands {command} runs/NAME")
    return Path(path)
