"""``train TASK --workers auto``: as many workers as `manyhands plan` advises here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.cli.arguments import Words
from manyhands.config import plans
from manyhands.config.sections import Top
from manyhands.runs import rundir
from manyhands.types import BadRequest, machine

FLAG, AUTO = "--workers", "auto"
EACH_CORE = 32  # the most workers that are considered
PAYS = 1.05  # times one worker; less is not worth the processes
Flags = dict[str, dict[str, Any]]
KEPT = ("workers", "actors", "learners", "strategy")


def taken(words: Words) -> tuple[list[str], bool]:
    """The words without ``--workers auto``, and whether it was there."""
    rest: list[str] = []
    found = False
    for word in words:
        if word == f"{FLAG}={AUTO}":
            found = True
        elif word == AUTO and rest and rest[-1] == FLAG:
            rest.pop()
            found = True
        else:
            rest.append(word)
    return rest, found


def advised(task: str, flags: Flags, own: Mapping[str, Any]) -> Flags:
    """The flags with what was chosen. A run that is resumed keeps what it has."""
    run = dict(flags.get("run", {}))
    for name in ("workers", "actors"):
        if name in run:
            raise BadRequest(f"{FLAG} {AUTO} and --{name} were both given", "give one of them")
    out = own.get("out")
    if (
        own.get("resume_if_exists")
        and out
        and (config := rundir.RunDir(Path(out)).config).is_file()
    ):
        recorded = plans.from_json(config, allow_code=True).top
        return {**flags, "run": {**run, **_kept(recorded)}}
    chosen, why = choose(task, flags)
    if not own.get("quiet"):
        print(f"{FLAG} {AUTO}: {why}", file=sys.stderr, flush=True)
    return {**flags, "run": {**run, **chosen}}


def _kept(recorded: Top) -> dict[str, Any]:
    kept = {name: getattr(recorded, name) for name in KEPT}
    if not recorded.actors:
        return {"workers": kept["workers"], "strategy": kept["strategy"]}
    return {name: kept[name] for name in ("actors", "learners", "strategy")}


def choose(task: str, flags: Flags) -> tuple[dict[str, Any], str]:
    """The values of the run, and a line that says what was chosen and why.

    A recipe whose workers share keeps its strategy; otherwise every strategy is tried.
    """
    from manyhands.planning import command

    base = plans.resolve(task, flags)
    run = flags.get("run", {})
    if base.strategy.shares_parameters and not base.top.actors:
        flags = {**flags, "run": {**run, "strategy": base.top.strategy}}
    cores = machine.cores()
    counts = tuple(2**k for k in range((EACH_CORE * cores).bit_length()))
    counts = tuple(n for n in counts if n <= EACH_CORE * cores)
    here = command.sites_of({})
    found = command.look_ahead(task, flags, here, tell=lambda _: None, counts=counts)
    best = command.best_of(found)
    if best.times < PAYS and not base.top.actors:
        return {"workers": 1}, f"1 worker; {best} would be {best.times:.2f} times as fast"
    why = f"{best}, {best.times:.1f} times one worker; limited by: {best.outcome.waiting}"
    if best.way.apart:
        return {"actors": best.workers}, why
    return {"workers": best.workers, "strategy": best.way.name}, why
