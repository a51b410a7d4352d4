"""The command: reads the words, calls the house, prints what a person needs to know."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from manyhands import config, registry
from manyhands.signals import INTERRUPTED
from manyhands.types import BadRequest, Refusal, knob

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
class NoFlags: ...


def main(words: Words | None = None) -> int:
    """Exit codes: 0 finished, 1 failed, 2 bad request, 130 interrupted after a checkpoint."""
    words = sys.argv[1:] if words is None else words
    try:
        return _dispatch(words)
    except Refusal as refusal:
        print(f"manyhands: {_one_line(refusal.what)}", file=sys.stderr)
        if refusal.remedy:
            print(f"  {_one_line(refusal.remedy)}", file=sys.stderr)
        return refusal.code
    except KeyboardInterrupt:
        return INTERRUPTED


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _dispatch(words: Words) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from manyhands import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        raise registry.unknown("command", words[0], list(COMMANDS))
    command, rest = COMMANDS[words[0]], words[1:]
    if "-h" in rest or "--help" in rest:
        print(_help(words[0], [w for w in rest if w not in ("-h", "--help")]))
        return 0
    return command.run(rest)


# --- Commands -----------------------------------------------------------------------------------


def _train(words: Words) -> int:
    task, own, sections = _read(words, TrainFlags, "TASK", sections=True)
    if not task:
        raise BadRequest(
            "train needs a task", f"one of {', '.join(_tasks())}, or any environment id"
        )
    if network := own.pop("network", None):
        sections.setdefault("network", {})["torso"] = network
    flags = {"run": {k: v for k, v in own.items() if k in _TOP}, **sections}
    if own.get("print_config"):
        print(_values(config.resolve(task, flags)))
        return 0
    from manyhands.run import Run

    run = Run(
        task,
        out=own.get("out"),
        quiet=bool(own.get("quiet")),
        resume_if_exists=bool(own.get("resume_if_exists")),
        **flags.pop("run"),
        **flags,
    )
    run.finish()
    return INTERRUPTED if run.interrupted else 0


def _resume(words: Words) -> int:
    path, own, _ = _read(words, ResumeFlags, "RUN")
    from manyhands.run import resume

    run = resume(_run_path("resume", path), **own)
    return INTERRUPTED if run.interrupted else 0


def _evaluate(words: Words) -> int:
    path, own, _ = _read(words, EvaluateFlags, "RUN")
    flags = EvaluateFlags(**own)
    from manyhands import evaluate, progress, worker

    where = Path(_run_path("evaluate", path))
    policy = evaluate.load(where, best=flags.best, allow_code=flags.allow_code)
    worker.set_threads(progress.resources(policy.plan))
    own_epsilon = policy.plan["evaluation"].epsilon
    chosen = own_epsilon if flags.epsilon is None else flags.epsilon
    result = evaluate.evaluate(
        policy.plan,
        policy.algorithm,
        episodes=flags.episodes,
        epsilon=chosen,
        seed=flags.seed,
        threads=progress.resources(policy.plan),
    )
    if flags.json:
        facts = {"run": str(where), "agent_steps": policy.step, "epsilon": chosen}
        print(
            json.dumps({**facts, "seed": flags.seed, **result.as_json(), "scores": result.scores})
        )
    else:
        print(
            f"{policy.plan.task}: {result.mean:.1f} ± {result.std:.1f} over {flags.episodes} "
            f"episodes (checkpoint at {policy.step:,} agent steps, epsilon {chosen:g})"
        )
    return 0


def _list(words: Words) -> int:
    _read(words, NoFlags, "")
    for kind in ("tasks", "recipes"):
        print(f"{kind}:")
        for name in config.preset_names(kind):
            print(f"  {name:14} {config.read_preset(kind, name).get('about', '')}")
    for room in ("algorithms", "strategies", "backends"):
        print(f"{room}:")
        for name in registry.names(room):
            print(f"  {name:14} {registry.about(room, name)}")
    return 0


def _tasks() -> list[str]:
    return config.preset_names("tasks")


def _run_path(command: str, path: str) -> str:
    if not path:
        raise BadRequest(f"{command} needs a run", f"manyhands {command} runs/NAME")
    return path


@dataclass(frozen=True)
class Command:
    run: Callable[[Words], int]
    usage: str
    about: str
    flags: type


COMMANDS = {
    "train": Command(_train, "TASK", "train an agent", TrainFlags),
    "resume": Command(_resume, "RUN", "go on exactly where a run stopped", ResumeFlags),
    "evaluate": Command(
        _evaluate, "RUN", "play without learning and print the score", EvaluateFlags
    ),
    "list": Command(_list, "", "tasks, recipes, algorithms, strategies, backends", NoFlags),
}
_TOP = {field.name for field in fields(config.Top)}


# --- Reading words ------------------------------------------------------------------------------


def _read(
    words: Words, flags: type, positional: str, *, sections: bool = False
) -> tuple[str, dict[str, Any], dict[str, dict[str, Any]]]:
    """The positional word, the command's own flags in their types, and --section.field texts."""
    known = {field.name: field for field in fields(flags)}
    place, own, dotted = "", dict[str, Any](), dict[str, dict[str, Any]]()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if place or not positional:
                raise BadRequest(f"{word!r} is one word too many", "see --help")
            place = word
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if sections and "." in name:
            section, _, field = name.partition(".")
            dotted.setdefault(section, {})[field] = value if equals else _value(word, rest)
        elif name in known:
            is_switch = isinstance(known[name].default, bool)
            text = value if equals else ("true" if is_switch else _value(word, rest))
            own[name] = config.checked(f"--{name.replace('_', '-')}", text, flags, name)
        else:
            raise registry.unknown("option", word, [f"--{n.replace('_', '-')}" for n in known])
    return place, own, dotted


def _value(word: str, rest: list[str]) -> str:
    """The next word; a section's switch may stand alone."""
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    if "." in word:
        return "true"
    raise BadRequest(f"{word} needs a value", "see --help")


# --- Help ---------------------------------------------------------------------------------------


def _overview() -> str:
    commands = (f"  manyhands {n} {c.usage}".ljust(28) + c.about for n, c in COMMANDS.items())
    return "\n".join(
        [
            "manyhands: deep reinforcement learning in which the way of sharing the work is a flag",
            "",
            *commands,
            "",
            f"tasks: {', '.join(_tasks())}, or any environment id",
            "manyhands COMMAND --help says more",
        ]
    )


def _help(name: str, words: Words) -> str:
    command = COMMANDS[name]
    lines = [f"manyhands {name} {command.usage} [OPTIONS]", f"  {command.about}", ""]
    lines += [_knob_line(f"--{f.name}", f) for f in fields(command.flags)]
    if name == "train":
        task, own, _ = _read(words, TrainFlags, "TASK", sections=True)
        task = task or "lunarlander"
        top = {k: v for k, v in own.items() if k in _TOP}
        plan = config.resolve(task, {"run": top})
        lines += ["", f"sections in use, with the values of {task} by {plan.top.recipe}:"]
        for section, made in plan.sections.items():
            for field in fields(made):
                value = getattr(made, field.name)
                lines.append(_knob_line(f"--{section}.{field.name}", field, value))
    return "\n".join(lines)


def _knob_line(flag: str, field: dataclasses.Field[Any], value: Any = None) -> str:
    default = field.default if value is None else value
    shown = "" if default in ("", None, False, ()) else f" [{_text(default)}]"
    choices = ", ".join(field.metadata.get("choices", ()))
    doc = field.metadata.get("doc", "") + (f" ({choices})" if choices else "")
    return f"  {flag.replace('_', '-'):32} {doc}{shown}"


def _values(plan: config.Plan) -> str:
    """Every value and where it came from."""
    lines = [f"task = {plan.task}"]
    for section, values in plan.as_layer().items():
        for name, value in values.items():
            source = plan.sources.get(f"{section}.{name}", "default")
            label = name if section == "run" else f"{section}.{name}"
            lines.append(f"{label:34} {_text(value):20} {source}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "()"
    return str(value)
