"""The command `manyhands`: reads its arguments, calls the other rooms, prints the results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from manyhands.cli import auto, help_text, printed
from manyhands.cli.arguments import (
    CompareFlags,
    DoctorFlags,
    EvaluateFlags,
    NoFlags,
    PlanFlags,
    PlotFlags,
    ResumeFlags,
    TrainFlags,
    Words,
    read,
    run_path,
)
from manyhands.config import plans, presets, registry, sections
from manyhands.runs.signals import INTERRUPTED
from manyhands.types import BadRequest, Failure, Refusal, output
from manyhands.viewing.flags import PlayFlags, RecordFlags, own_code

SPINS = "20000"  # a fifteenth of OpenMP's default
MANY = 1000  # the most paths that a command accepts


def main(words: Words | None = None) -> int:
    """Exit codes: 0 finished, 1 failed, 2 bad request, 130 interrupted after a checkpoint."""
    words = sys.argv[1:] if words is None else words
    # Set before torch is loaded: its threads would spin on cores that the emulator needs.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    with output.installed() as out:
        code = _told(words)
        out.flush()
        if out.problem is None or out.reader_left or code or _keeps_its_result(words):
            return code
        print(f"manyhands: standard output could not be written: {out.problem}", file=sys.stderr)
        print("  redirect it to a file that can be written", file=sys.stderr)
        return Failure.code


def _told(words: Words) -> int:
    """Runs the command and prints its errors; returns its exit code."""
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


def _keeps_its_result(words: Words) -> bool:
    """Whether its result is in files, so that its output may be lost."""
    return bool(words) and words[0] in COMMANDS and COMMANDS[words[0]].keeps


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _dispatch(words: Words) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text.overview([_entry(name) for name in COMMANDS], help_text.columns()))
        return 0
    if words[0] == "--version":
        from manyhands import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        raise registry.unknown("command", words[0], list(COMMANDS))
    command, rest = COMMANDS[words[0]], words[1:]
    if "-h" in rest or "--help" in rest:
        typed = [word for word in rest if word not in ("-h", "--help")]
        print(help_text.of(_entry(words[0]), typed, help_text.columns()))
        return 0
    return command.run(rest)


# --- Commands -----------------------------------------------------------------------------------


def _train(words: Words) -> int:
    words, finds_workers = auto.taken(words)
    typed = read(words, TrainFlags, sections=True)
    task, own, sections = typed.place, typed.own, typed.sections
    if not task:
        raise BadRequest(
            "train needs a task", f"one of {', '.join(_tasks())}, or any environment id"
        )
    if network := own.pop("network", None):
        sections.setdefault("network", {})["torso"] = network
    flags = {"run": {k: v for k, v in own.items() if k in _TOP}, **sections}
    if finds_workers:
        flags = auto.advised(task, flags, own)
    if own.get("print_config"):
        print(printed.values(plans.resolve(task, flags)))
        return 0
    from manyhands.runs.provenance import command_line
    from manyhands.runs.run import Run

    run = Run(
        task,
        out=own.get("out"),
        quiet=bool(own.get("quiet")),
        resume_if_exists=bool(own.get("resume_if_exists")),
        on_report=own.get("hook"),
        command=command_line(),
        **flags.pop("run"),
        **flags,
    )
    run.finish()
    return INTERRUPTED if run.interrupted else 0


def _resume(words: Words) -> int:
    typed = read(words, ResumeFlags, sections=True)
    path, own = run_path("resume", typed.place), typed.own
    from manyhands.runs import opening
    from manyhands.runs.api import resume
    from manyhands.runs.provenance import command_line

    quiet, hook = own.pop("quiet", False), own.pop("hook", None)
    if "network" in own and "network" in typed.sections:
        raise BadRequest("--network and --network.… were both given", "give --network alone")
    changes: dict[str, Any] = {**own, **typed.sections}
    if changes.pop("print_config", False):
        print(printed.values(opening.resumed_plan(path, opening.Changes.of(changes))))
        return 0
    run = resume(path, quiet=quiet, on_report=hook, **changes, command=command_line())
    return INTERRUPTED if run.interrupted else 0


def _evaluate(words: Words) -> int:
    typed = read(words, EvaluateFlags)
    where, flags = run_path("evaluate", typed.place), EvaluateFlags(**typed.own)
    from manyhands.roles.process_setup import set_threads_for
    from manyhands.runs import evaluate, policies, progress

    policy = policies.load(where, best=flags.best, **own_code(flags))
    set_threads_for(policy.plan, progress.resources(policy.plan))
    own_epsilon = policy.plan.evaluation.epsilon
    chosen = own_epsilon if flags.epsilon is None else flags.epsilon
    result = evaluate.evaluate(
        policy.plan,
        policy.algorithm,
        episodes=flags.episodes,
        epsilon=chosen,
        seed=flags.seed,
        episode_steps=flags.episode_steps,
        threads=progress.resources(policy.plan),
    )
    if flags.json:
        facts = {"run": str(where), "agent_steps": policy.step, "epsilon": chosen}
        facts["cut_off"] = result.cut_off
        print(
            json.dumps({**facts, "seed": flags.seed, **result.as_json(), "scores": result.scores})
        )
    else:
        print(
            f"{policy.plan.task}: {result} "
            f"(checkpoint at {policy.step:,} agent steps, epsilon {chosen:g})"
        )
    return 0


def _list(words: Words) -> int:
    if place := read(words, NoFlags).place:
        from manyhands.runs.liveness import listed

        print("\n".join(listed(Path(place))))
        return 0
    for kind in ("tasks", "recipes"):
        print(f"{kind}:")
        for name in presets.names(kind):
            print(f"  {name:17} {presets.read(kind, name).get('about', '')}")
    for room in ("algorithms", "strategies", "backends"):
        print(f"{room}:")
        for name in registry.names(room):
            print(f"  {name:17} {registry.about(room, name)}")
    return 0


def _record(words: Words) -> int:
    typed = read(words, RecordFlags)
    where, flags = run_path("record", typed.place), RecordFlags(**typed.own)
    from manyhands.viewing.record import record

    for line in record(where, flags):
        print(line)
    return 0


def _watch(words: Words) -> int:
    typed = read(words, PlayFlags)
    where, flags = run_path("watch", typed.place), PlayFlags(**typed.own)
    from manyhands.viewing.watch import watch

    watch(where, flags)
    return 0


def _plot(words: Words) -> int:
    typed = read(words, PlotFlags, most=MANY)
    runs = [run_path("plot", place) for place in typed.places or [""]]
    from manyhands.viewing import plot

    print(plot.plot(runs, out=typed.own.get("out", "")))
    return 0


def _compare(words: Words) -> int:
    typed = read(words, CompareFlags, sections=True)
    from manyhands.compare.command import compare

    return compare(typed.place, typed.own, typed.sections)


def _plan(words: Words) -> int:
    typed = read(words, PlanFlags, sections=True)
    if not typed.place:
        raise BadRequest("plan needs a task", f"one of {', '.join(_tasks())}, or any environment")
    from manyhands.planning.command import plan

    run = {name: typed.own.pop(name) for name in _OF_RUN if name in typed.own}
    return plan(typed.place, typed.own, {"run": run, **typed.sections})


def _doctor(words: Words) -> int:
    typed = read(words, DoctorFlags, most=0)
    from manyhands.cli import doctor

    facts = doctor.examine()
    print(json.dumps(facts) if typed.own.get("json") else doctor.as_text(facts))
    return 0


def _tasks() -> list[str]:
    return presets.names("tasks")


@dataclass(frozen=True)
class Command:
    run: Callable[[Words], int]
    usage: str
    about: str
    flags: type
    keeps: bool = False  # its result is in files


COMMANDS = {
    "train": Command(_train, "TASK", "train an agent", TrainFlags, keeps=True),
    "resume": Command(
        _resume, "RUN", "continue a run from its newest checkpoint", ResumeFlags, keeps=True
    ),
    "evaluate": Command(
        _evaluate, "RUN", "play without learning and print the score", EvaluateFlags
    ),
    "record": Command(_record, "RUN", "make a video of the agent", RecordFlags, keeps=True),
    "watch": Command(_watch, "RUN", "show the agent playing", PlayFlags),
    "plot": Command(_plot, "RUN…", "draw return and speed as a PNG", PlotFlags, keeps=True),
    "compare": Command(
        _compare, "TASK", "compare ways of sharing the work", CompareFlags, keeps=True
    ),
    "plan": Command(_plan, "TASK", "predict what more workers, cores or nodes give", PlanFlags),
    "doctor": Command(_doctor, "", "check this machine and show how to fix problems", DoctorFlags),
    "list": Command(
        _list, "[FOLDER]", "list tasks, recipes and parts, or the runs in a folder", NoFlags
    ),
}
_OF_RUN = ("recipe", "strategy", "envs_per_worker")  # options of plan that are train's
_TOP = {field.name for field in fields(sections.Top)}


# --- What is printed ----------------------------------------------------------------------------


def _entry(name: str) -> help_text.Entry:
    command = COMMANDS[name]
    return help_text.Entry(name, command.usage, command.about, command.flags)
