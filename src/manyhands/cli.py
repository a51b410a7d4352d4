"""The command: reads the words, calls the house, prints what a person needs to know."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields

from manyhands import config, registry
from manyhands.signals import INTERRUPTED
from manyhands.types import BadRequest, Refusal
from manyhands.words import (
    CompareFlags,
    DoctorFlags,
    EvaluateFlags,
    NoFlags,
    PlayFlags,
    PlotFlags,
    RecordFlags,
    ResumeFlags,
    TrainFlags,
    Words,
    as_text,
    knob_line,
    read,
    run_path,
)

SPINS = "20000"  # a fifteenth of OpenMP's own choice
MANY = 1000  # places a command may be given that takes several


def main(words: Words | None = None) -> int:
    """Exit codes: 0 finished, 1 failed, 2 bad request, 130 interrupted after a checkpoint."""
    words = sys.argv[1:] if words is None else words
    # Before torch is loaded: its threads would spin on cores that the emulator's need.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        return _dispatch(words)
    except Refusal as refusal:
        print(f"manyhands: {_one_line(refusal.what)}", file=sys.stderr)
        if refusal.remedy:
            print(f"  {_one_line(refusal.remedy)}", file=sys.stderr)
        return refusal.code
    except KeyboardInterrupt:
        print("manyhands: interrupted", file=sys.stderr)
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
    typed = read(words, TrainFlags, sections=True)
    task, own, sections = typed.place, typed.own, typed.sections
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
    typed = read(words, ResumeFlags)
    from manyhands.run import resume

    run = resume(run_path("resume", typed.place), **typed.own)
    return INTERRUPTED if run.interrupted else 0


def _evaluate(words: Words) -> int:
    typed = read(words, EvaluateFlags)
    where, flags = run_path("evaluate", typed.place), EvaluateFlags(**typed.own)
    from manyhands import evaluate, progress, worker

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
    read(words, NoFlags, most=0)
    for kind in ("tasks", "recipes"):
        print(f"{kind}:")
        for name in config.preset_names(kind):
            print(f"  {name:17} {config.read_preset(kind, name).get('about', '')}")
    for room in ("algorithms", "strategies", "backends"):
        print(f"{room}:")
        for name in registry.names(room):
            print(f"  {name:17} {registry.about(room, name)}")
    return 0


def _record(words: Words) -> int:
    typed = read(words, RecordFlags)
    where, flags = run_path("record", typed.place), RecordFlags(**typed.own)
    from manyhands.record import record

    for line in record(where, flags):
        print(line)
    return 0


def _watch(words: Words) -> int:
    typed = read(words, PlayFlags)
    where, flags = run_path("watch", typed.place), PlayFlags(**typed.own)
    from manyhands.watch import watch

    watch(where, flags)
    return 0


def _plot(words: Words) -> int:
    typed = read(words, PlotFlags, most=MANY)
    runs = [run_path("plot", place) for place in typed.places or [""]]
    from manyhands import plot

    print(plot.plot(runs, out=typed.own.get("out", "")))
    return 0


def _compare(words: Words) -> int:
    typed = read(words, CompareFlags, sections=True)
    from manyhands.compare.command import compare

    return compare(typed.place, typed.own, typed.sections)


def _doctor(words: Words) -> int:
    typed = read(words, DoctorFlags, most=0)
    from manyhands import doctor

    facts = doctor.examine()
    print(json.dumps(facts) if typed.own.get("json") else doctor.as_text(facts))
    return 0


def _tasks() -> list[str]:
    return config.preset_names("tasks")


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
    "record": Command(_record, "RUN", "a video of the agent playing", RecordFlags),
    "watch": Command(_watch, "RUN", "the agent plays before your eyes", PlayFlags),
    "plot": Command(_plot, "RUN…", "reward and speed curves as a PNG", PlotFlags),
    "compare": Command(_compare, "TASK", "which way of sharing the work pays", CompareFlags),
    "doctor": Command(_doctor, "", "what this machine can do, and what mends it", DoctorFlags),
    "list": Command(_list, "", "tasks, recipes, algorithms, strategies, backends", NoFlags),
}
_TOP = {field.name for field in fields(config.Top)}


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
    lines += [knob_line(f"--{f.name}", f) for f in fields(command.flags)]
    if name == "train":
        typed = read(words, TrainFlags, sections=True)
        task = typed.place or "lunarlander"
        top = {k: v for k, v in typed.own.items() if k in _TOP}
        plan = config.resolve(task, {"run": top})
        lines += ["", f"sections in use, with the values of {task} by {plan.top.recipe}:"]
        for section, made in plan.sections.items():
            for field in fields(made):
                value = getattr(made, field.name)
                lines.append(knob_line(f"--{section}.{field.name}", field, value))
    return "\n".join(lines)


def _values(plan: config.Plan) -> str:
    """Every value and where it came from."""
    lines = [f"task = {plan.task}"]
    for section, values in plan.as_layer().items():
        for name, value in values.items():
            source = plan.sources.get(f"{section}.{name}", "default")
            label = name if section == "run" else f"{section}.{name}"
            lines.append(f"{label:34} {as_text(value):20} {source}")
    return "\n".join(lines)
