"""Opens the folder of a run: a new run, one that resumes, or one that begins again.

``--resume-if-exists`` keeps the values that the run was made with. Only its length may change, and
the new length is recorded. Any other change is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from manyhands.config import plans, precision
from manyhands.roles.process_setup import choose_device
from manyhands.runs import liveness, rundir
from manyhands.types import BadRequest

LENGTH = ("steps", "minutes", "until_solved")  # may change when a run resumes


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
    if out is None or not (out / "config.json").is_file():
        return new(out, plan, own_network=own_network)
    folder, life = rundir.existing(out), liveness.of(out)
    if not folder.has_checkpoint():
        device = choose_device(plan.top.device)
        plan = precision.settled(plan, device, own_network=own_network)
        note = f"{out} was stopped before its first checkpoint: it begins again"
        return Opening(folder, plan, notes=(note,))
    recorded = liveness.read(out, "config.json").get("config", {})
    changed = list(_changed(recorded, plan))
    _refuse(out, [change for change in changed if change.name not in LENGTH])
    asked = {name: getattr(plan.top, name) for name in LENGTH}
    finished = life.state == liveness.FINISHED and not changed
    # The user has just named the same code on the command line, so it may run.
    plan = plans.from_json(folder.config, allow_code=True)
    plan = replace(plan, top=replace(plan.top, **asked))
    return _resuming(folder, plan, life, finished=finished, changed=bool(changed))


def resumed(
    path: Path, *, steps: int, minutes: float, network: str, algorithm: str, allow_code: bool
) -> Opening:
    """`network`, `algorithm`: files that replace the run's."""
    folder, life = rundir.existing(path), liveness.of(path)
    plan = plans.from_json(
        folder.config, allow_code=allow_code, network=network, algorithm=algorithm
    )
    if steps and minutes:
        raise BadRequest("--steps and --minutes were both given", "give one of them")
    if steps or minutes:  # an explicit length holds even if the task is solved
        top = replace(plan.top, steps=steps, minutes=minutes, until_solved=False)
        plan = replace(plan, top=top)
    changed = bool(steps or minutes or network or algorithm)
    return _resuming(folder, plan, life, finished=False, changed=changed)


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
