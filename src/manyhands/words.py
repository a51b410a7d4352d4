"""What may be typed: every command's flags, and how words become their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from manyhands import config, registry
from manyhands.types import BadRequest, knob

Words = Sequence[str]


@dataclass(frozen=True)
class TrainFlags(config.Top):
    out: str = knob("", "the run's folder; without it one is made under runs/")
    network: str = knob("", "short for --network.torso: a name, or my.py:Net")
    resume_if_exists: bool = knob(False, "go on with --out if it is there already")
    print_config: bool = knob(False, "show every value and where it came from; do not train")
    quiet: bool = knob(False, "print nothing while training")


@dataclass(frozen=True)
class ResumeFlags:
    steps: int = knob(0, "the new total of agent steps; 0: as first asked for", low=0)
    minutes: float = knob(0.0, "minutes to go on for, instead of steps", low=0)
    allow_code: bool = knob(False, "run the Python files that the run's config names")
    quiet: bool = knob(False, "print nothing while training")


@dataclass(frozen=True)
class EvaluateFlags:
    best: bool = knob(False, "the best checkpoint instead of the newest")
    episodes: int = knob(100, "episodes to play", low=1)
    epsilon: float | None = knob(None, "random actions; without it the task's own", low=0, high=1)
    seed: int = knob(1, "of the environments", low=0)
    json: bool = knob(False, "print one line of JSON")
    allow_code: bool = knob(False, "run the Python files that the run's config names")


@dataclass(frozen=True)
class PlayFlags:
    """Of whatever lets a trained agent play where one can look on."""

    best: bool = knob(False, "the best checkpoint instead of the newest")
    episodes: int = knob(1, "episodes to play", low=1)
    epsilon: float | None = knob(None, "random actions; without it the task's own", low=0, high=1)
    seed: int = knob(1, "of the environment", low=0)
    seconds: float = knob(60.0, "the longest an episode may be shown for", above=0)
    allow_code: bool = knob(False, "run the Python files that the run's config names")


@dataclass(frozen=True)
class RecordFlags(PlayFlags):
    through_time: bool = knob(False, "untrained, a quarter, half and best, side by side")
    out: str = knob("", "FILE.mp4, FILE.gif, or FILE for both; without it into RUN/videos/")


@dataclass(frozen=True)
class PlotFlags:
    out: str = knob("", "the PNG; without it RUN/curves.png, or curves.png for several runs")


@dataclass(frozen=True)
class CompareFlags:
    recipes: str = knob("", "which, as in dqn,hogwild; or variants that the --config names")
    workers: str = knob("1,2", "numbers of workers, as in 1,2,4")
    seeds: str = knob("3", "how many, from 1 on; or which, as in 3,7")
    metric: str = knob("solve", "what is compared", choices=("solve", "throughput"))
    minutes: float = knob(
        0.0, "of a cell at most; 0: ten to solve, a third of one to measure throughput", low=0
    )
    steps: int = knob(0, "agent steps of a cell at most, instead of minutes", low=0)
    within_minutes: float = knob(0.0, "begin no cell after so long; 0: run them all", low=0)
    config: str = knob("", "a TOML file with the same words, and variants of recipes")
    out: str = knob("", "the comparison's folder; one that is there goes on")
    order: int = knob(1, "the seed of the order in which cells run", low=0)
    retry: bool = knob(False, "run cells again that failed")
    draw: bool = knob(False, "run nothing; write the report of what is there")
    threads: int = knob(0, "of each cell, as for train", low=0)
    envs_per_worker: int = knob(1, "of each cell, as for train", low=1)
    backend: str = knob("auto", "of each cell, as for train")
    device: str = knob("auto", "of each cell, as for train")
    threshold: float | None = knob(None, "mean return of 100 episodes that counts as solved")


@dataclass(frozen=True)
class DoctorFlags:
    json: bool = knob(False, "print one line of JSON")


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
            typed.sections.setdefault(section, {})[field] = text
        elif name in known:
            is_switch = isinstance(known[name].default, bool)
            text = value if equals else ("true" if is_switch else _value(word, rest))
            typed.own[name] = config.checked(f"--{name.replace('_', '-')}", text, flags, name)
        else:
            raise registry.unknown("option", word, [f"--{n.replace('_', '-')}" for n in known])
    return typed


def _value(word: str, rest: list[str]) -> str:
    """The next word; a section's switch may stand alone."""
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    if "." in word:
        return "true"
    raise BadRequest(f"{word} needs a value", "see --help")


def knob_line(flag: str, field: dataclasses.Field[Any], value: Any = None) -> str:
    default = field.default if value is None else value
    shown = "" if default in ("", None, False, ()) else f" [{as_text(default)}]"
    choices = ", ".join(field.metadata.get("choices", ()))
    doc = field.metadata.get("doc", "") + (f" ({choices})" if choices else "")
    return f"  {flag.replace('_', '-'):32} {doc}{shown}"


def as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "()"
    return str(value)


def run_path(command: str, path: str) -> Path:
    if not path:
        raise BadRequest(f"{command} needs a run", f"manyhands {command} runs/NAME")
    return Path(path)
