"""The flags of every command, and how they are read."""

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
    workers: int = option(
        1, "processes that each act and learn; auto: as many as `manyhands plan` advises", low=1
    )
    out: str = option("", "the run's folder; default: a new one under runs/")
    network: str = option("", "short for --network.torso: a name, or my.py:Net")
    resume_if_exists: bool = option(False, "resume the run in --out if it exists")
    hook: str = option("", "my.py:f, a function that sees every report and may stop the run")
    print_config: bool = option(False, "show every value and where it came from; do not train")
    quiet: bool = option(False, "print nothing while training")


@dataclass(frozen=True)
class ResumeFlags(OwnFlags):
    steps: int = option(0, "new total of agent steps; 0: as requested last", low=0)
    minutes: float = option(0.0, "further minutes to train, instead of steps", low=0)
    workers: int = option(0, "other processes that each act and learn; 0: as before", low=0)
    actors: int | None = option(None, "other processes that only act; 0: workers do both", low=0)
    learners: int = option(0, "other processes that only learn; 0: as before", low=0)
    strategy: str = option("", "another way to share parameters")
    island_size: int = option(0, "another number of workers in an island; 0: as before", low=0)
    backend: str = option("", "another place for workers to run")
    envs_per_worker: int = option(0, "another number of environments; 0: as before", low=0)
    publish_every: int = option(0, "other updates between publications; 0: as before", low=0)
    device: str = option("", "another device of the networks; default: as before")
    threads: int = option(0, "another number of threads; 0: as before", low=0)
    hang_s: float = option(0.0, "other seconds without progress; 0: as before", low=0)
    until_solved: bool = option(False, "stop when solved; default: as before")
    threshold: float | None = option(None, "another mean return that counts as solved")
    hook: str = option("", "my.py:f, a function that sees every report and may stop the run")
    print_config: bool = option(False, "show every value and where it came from; do not train")
    quiet: bool = option(False, "print nothing while training")


@dataclass(frozen=True)
class EvaluateFlags(OwnFlags):
    best: bool = option(False, "the best checkpoint instead of the newest")
    episodes: int = option(100, "episodes to play", low=1)
    epsilon: float | None = option(
        None, "share of random actions; default: the task's", low=0, high=1
    )
    episode_steps: int | None = option(
        None, "cut episodes off after so many agent steps; 0: never; default: the run's", low=0
    )
    seed: int = option(1, "seed of the environments", low=0)
    json: bool = option(False, "print one line of JSON")


@dataclass(frozen=True)
class PlotFlags:
    out: str = option("", "the PNG; default: RUN/curves.png, or curves.png for several runs")


@dataclass(frozen=True)
class CompareFlags:
    recipes: str = option("", "recipes, e.g. dqn,hogwild, or variants from --config")
    workers: str = option("1,2", "numbers of workers, e.g. 1,2,4")
    seeds: str = option("3", "number of seeds, or a list such as 3,7")
    metric: str = option(
        "solve", "what to compare: time to solve, or throughput", choices=("solve", "throughput")
    )
    minutes: float = option(0.0, "minutes per cell at most; 0: 10, or 1/3 for throughput", low=0)
    steps: int = option(0, "agent steps per cell at most, instead of minutes", low=0)
    within_minutes: float = option(0.0, "start no cell after this many minutes; 0: run all", low=0)
    config: str = option("", "a TOML file with these options, and variants of recipes")
    out: str = option("", "the comparison's folder; an existing one is continued")
    order: int = option(1, "seed of the order in which cells run", low=0)
    at_once: int = option(
        0, "threads of cells side by side, for tasks that wait; 0: one cell at a time", low=0
    )
    retry: bool = option(False, "run failed cells again")
    draw: bool = option(False, "run nothing; write the report from existing results")
    threads: int = option(0, "threads of each cell, as for train", low=0)
    envs_per_worker: int = option(1, "environments of each worker, as for train", low=1)
    backend: str = option("auto", "backend of each cell, as for train")
    device: str = option("auto", "device of each cell, as for train")
    threshold: float | None = option(None, "mean return of 100 episodes that counts as solved")


@dataclass(frozen=True)
class PlanFlags:
    recipe: str = option("", "recipe; default: the task's")
    strategy: str = option("", "only this way to share parameters; default: every one")
    envs_per_worker: int | None = option(None, "as for train; default: the task's", low=1)
    workers: str = option("", "numbers of workers, e.g. 1,2,4; default: 1 to 10,000")
    cores: int = option(0, "also simulate a machine of so many cores", low=0, high=4096)
    nodes: int = option(1, "also simulate so many nodes, each of --cores", low=1, high=4096)
    gbps: float = option(
        0.0, "with --nodes: gigabits per second of each node's link; 0: 10", low=0, high=10_000
    )
    json: bool = option(False, "print one line of JSON")
    out: str = option("", "a PNG to draw the curves into")


@dataclass(frozen=True)
class DoctorFlags:
    json: bool = option(False, "print one line of JSON")


@dataclass(frozen=True)
class NoFlags: ...


# --- Reading flags ------------------------------------------------------------------------------


class Typed(NamedTuple):
    places: list[str]  # the arguments that are not flags: a task, runs
    own: dict[str, Any]  # the command's flags, with typed values
    sections: dict[str, dict[str, Any]]  # the texts of --section.field

    @property
    def place(self) -> str:
        return self.places[0] if self.places else ""


def read(words: Words, flags: type, *, most: int = 1, sections: bool = False) -> Typed:
    """Reads a command's arguments, with at most `most` places."""
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
            flag, is_switch = f"--{name.replace('_', '-')}", isinstance(known[name].default, bool)
            text = value if equals else ("true" if is_switch else _value(word, rest))
            if not text.strip():  # a shell's variable that is not set, perhaps
                raise BadRequest(f"{flag} is empty", f"give a value, or leave {flag} out")
            typed.own[name] = values.checked(flag, text, flags, name)
        else:
            raise registry.unknown("option", word, [f"--{n.replace('_', '-')}" for n in known])
    return typed


def _note(section: dict[str, Any], field: str, text: str) -> None:
    """Stores a field's text; for a table of arguments, one argument's value."""
    table, dot, name = field.partition(".")
    if not dot:
        section[field] = text
    elif isinstance(arguments := section.setdefault(table, {}), dict):
        arguments[name] = values.literal(text)
    else:
        raise BadRequest(f"--….{table} and --….{field} were both given", "give one of them")


def _value(word: str, rest: list[str]) -> str:
    """The next word, or "true" for an option of a section without a value."""
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
