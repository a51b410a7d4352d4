"""Opens the folder of a run: a new run, one that resumes, or one that begins again.

``--resume-if-exists`` keeps the values that the run was made with. Only its length may change, and
the new length is recorded. Any other change is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.config import plans, precision, registry
from manyhands.roles.making import MakeTorso
from manyhands.roles.process_setup import choose_device
from manyhands.runs import liveness, policies, rundir
from manyhands.types import BadRequest, users_files

LENGTH = ("steps", "minutes", "until_solved")  # may change with --resume-if-exists
# By resume:
MAY_CHANGE = {"workers", "actors", "learners", "strategy", "backend", "envs_per_worker", "threads"}
MAY_CHANGE |= {"device", "publish_every", "until_solved", "threshold", "hang_s", "island_size"}
MAY_BE_EMPTY = {"actors", "until_solved", "threshold"}  # other empty values mean: as before
FIXED_WORDS = {"env": "environment", "network": "network"}
FIXED = set(FIXED_WORDS)


class Opening(NamedTuple):
    folder: rundir.RunDir
    plan: plans.Plan
    resumes: bool = False
    finished: bool = False  # it reached its end, and no other end is asked for
    record: plans.Plan | None = None  # the new content of config.json, if it changes
    notes: tuple[str, ...] = ()


def new(out: Path | None, plan: plans.Plan, *, own_network: bool) -> Opening:
    folder = rundir.new(out, plan)
    device = choose_device(plan.top.device)
    return Opening(folder, precision.settled(plan, device, own_network=own_network))


def if_exists(out: Path | None, plan: plans.Plan, *, own_network: bool) -> Opening:
    """Resumes the run in ``out``. Without a checkpoint it begins again."""
    if out is None:
        raise BadRequest(
            "--resume-if-exists without --out: every run would have a new folder",
            "add --out with the folder of the run",
        )
    if not (out / "config.json").is_file():
        return new(out, plan, own_network=own_network)
    folder, life = rundir.existing(out), liveness.of(out)
    if not folder.has_checkpoint():
        device = choose_device(plan.top.device)
        plan = precision.settled(plan, device, own_network=own_network)
        note = f"{out} was stopped before its first checkpoint: it begins again"
        return Opening(folder, plan, notes=(note,))
    recorded = liveness.read(out, "config.json").get("config", {})
    place, where = plan.place, f"{registry.section_name(plan.top.backend)}."
    # Where it runs may change: another cluster, for example.
    changed = [change for change in _changed(recorded, plan) if not change.name.startswith(where)]
    _refuse(out, [change for change in changed if change.name not in LENGTH])
    asked = {name: getattr(plan.top, name) for name in LENGTH}
    finished = life.state == liveness.FINISHED and not changed
    # The user has just named the same code on the command line, so it may run.
    plan = plans.from_json(folder.config, allow_code=True)
    plan = replace(plan, top=replace(plan.top, **asked), place=place)
    if not own_network:
        policies.check_size(plan, folder, None)
    return _resuming(folder, plan, life, finished=finished, changed=bool(changed))


@dataclass(frozen=True)
class Changes:
    """What ``resume`` may change. Empty values keep what the run was made with."""

    steps: int = 0
    minutes: float = 0.0
    network: str = ""  # the file, if it has moved
    algorithm: str = ""
    allow_code: bool = False
    run: Mapping[str, Any] = field(default_factory=dict)  # workers, strategy, …
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Changes:
        """From the words of the command, or the arguments of `mh.resume`. Dicts are sections."""
        own = {f.name for f in fields(cls)}
        given = {k: v for k, v in options.items() if v is not None and (v or k in MAY_BE_EMPTY)}
        sections = {k: v for k, v in given.items() if isinstance(v, dict)}
        run = {k: v for k, v in given.items() if k not in own and k not in sections}
        if unknown := sorted(set(run) - MAY_CHANGE):
            raise registry.unknown("option", unknown[0], sorted(MAY_CHANGE | own))
        known = {k: v for k, v in given.items() if k in own and k not in sections}
        return cls(**known, run=run, sections=sections)

    @property
    def any(self) -> bool:
        return self != Changes(allow_code=self.allow_code)

    def layer(self) -> dict[str, Mapping[str, Any]]:
        if fixed := sorted(set(self.sections) & FIXED):
            raise BadRequest(
                f"--{fixed[0]}.…: a run keeps its {FIXED_WORDS[fixed[0]]}",
                "train another run with it",
            )
        if self.steps and self.minutes:
            raise BadRequest("--steps and --minutes were both given", "give one of them")
        run = dict(self.run)
        if self.steps or self.minutes:  # an explicit length holds even if the task is solved
            length = {"steps": self.steps, "minutes": self.minutes, "until_solved": False}
            run = {**length, **run}
        return {"run": run, **self.sections}


def resumed_plan(path: Path, changes: Changes) -> plans.Plan:
    """The plan of the run with these changes."""
    folder = rundir.existing(path)
    if changes.algorithm and not users_files.is_path(changes.algorithm):
        recorded = plans.from_json(folder.config, allow_code=changes.allow_code).top.algorithm
        if changes.algorithm != recorded:  # a file may have moved
            raise BadRequest(
                f"--algorithm {changes.algorithm}: a run keeps its algorithm, which is {recorded}",
                "train another run with it",
            )
    return plans.from_json(
        folder.config,
        allow_code=changes.allow_code,
        network=changes.network,
        algorithm=changes.algorithm,
        flags=changes.layer(),
    )


def resumed(path: Path, changes: Changes, network: MakeTorso | None) -> Opening:
    """`network`: the caller's own, which a configuration cannot name."""
    folder, life = rundir.existing(path), liveness.of(path)
    plan = resumed_plan(path, changes)
    if life.state == liveness.DEAD and not folder.has_checkpoint():
        remedy = "begin it again: manyhands train … --out … --resume-if-exists"
        raise BadRequest(f"{path} has no checkpoint: {life.sentence()}", remedy)
    policies.check_size(plan, folder, network)
    return _resuming(folder, plan, life, finished=False, changed=changes.any)


def _resuming(
    folder: rundir.RunDir,
    plan: plans.Plan,
    life: liveness.Life,
    *,
    finished: bool,
    changed: bool,
) -> Opening:
    """A precision that this machine lacks stays in config.json: another machine may have it."""
    here = precision.as_before(plan, folder.config, choose_device(plan.top.device))
    notes = (life.sentence(),) if life.state == liveness.DEAD else ()
    record = plan if changed else None
    return Opening(folder, here, True, finished, record, (*notes, *plan.notes))


class Change(NamedTuple):
    name: str  # as on the command line, without --
    was: Any
    now: Any


def _changed(recorded: dict[str, Any], plan: plans.Plan) -> Iterator[Change]:
    """The values that differ from config.json."""
    asked = json.loads(json.dumps(plan.as_layer()))  # tuples become lists, as in config.json
    for section, values in asked.items():
        before = recorded.get(section, {})
        for name, now in values.items():
            was = before.get(name, now) if isinstance(before, dict) else now
            settled = (section, name, now) == ("network", "precision", "auto")
            if was != now and not settled:
                yield Change(name if section == "run" else f"{section}.{name}", was, now)


def _refuse(out: Path, changes: list[Change]) -> None:
    if not changes:
        return
    text = ", ".join(f"--{c.name.replace('_', '-')} {c.was}, not {c.now}" for c in changes[:3])
    raise BadRequest(
        f"{out} was made with {text}{', …' if len(changes) > 3 else ''}",
        "give the values it was made with, or another --out; only --steps, --minutes and "
        "--until-solved may change",
    )
