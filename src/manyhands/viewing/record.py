"""Records videos of an agent: of one checkpoint, or of several side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from manyhands import envs
from manyhands.config import runfiles
from manyhands.config.plans import Plan
from manyhands.roles.process_setup import set_threads_for
from manyhands.runs import checkpoint, policies, rundir, snapshots
from manyhands.runs.policies import Policy
from manyhands.runs.progress import resources
from manyhands.types import BadRequest, Failure
from manyhands.viewing import video
from manyhands.viewing.flags import RecordFlags, own_code
from manyhands.viewing.play import Moment, Stage

if TYPE_CHECKING:
    from PIL.Image import Image

ONE, SEVERAL = (640, 480), (320, 480)  # the largest panel, in pixels
HOLD_S = 1.0  # for this time the last picture of an episode stays


class Player(NamedTuple):
    label: str
    policy: Policy


def record(run: Path, flags: RecordFlags) -> list[str]:
    """Writes the video; returns lines to print: the scores, then the files."""
    video.require()
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame needs no screen then
    players = _through_time(run, flags) if flags.through_time else [_one(run, flags)]
    name = "through-time" if flags.through_time else players[0].label.replace(", step ", "-")
    files = _files(flags.out, run / "videos" / name.replace(",", ""))
    plan = players[0].policy.plan
    set_threads_for(plan, resources(plan))
    try:
        scores = _film(players, flags, files, None if flags.out else run)
    except OSError as error:
        raise Failure(
            f"could not write {files[0]}: {runfiles.reason(error)}", "choose another --out"
        ) from error
    lines = (
        f"{player.label}: {', '.join(map(video.caption, own))}"
        for player, own in zip(players, scores, strict=True)
    )
    return [*lines, *map(str, files)]


def _files(out: str, default: Path) -> list[Path]:
    path = Path(out) if out else default
    if path.suffix in (".mp4", ".gif"):
        return [path]
    if path.suffix and out:
        raise BadRequest(f"--out {out} is neither .mp4 nor .gif", "give one of them, or no suffix")
    return [path.with_name(f"{path.name}{suffix}") for suffix in (".mp4", ".gif")]


# --- Players ------------------------------------------------------------------------------------


def _one(run: Path, flags: RecordFlags) -> Player:
    policy = policies.load(run, best=flags.best, **own_code(flags))
    return Player(f"{'best' if flags.best else 'newest'}, step {policy.step:,}", policy)


def _through_time(run: Path, flags: RecordFlags) -> list[Player]:
    """Untrained, about a quarter, about half, and the best (without evaluations: the newest)."""
    plan = policies.plan_of(
        rundir.existing(run),
        network=flags.network,
        algorithm=flags.algorithm,
        allow_code=flags.allow_code,
    )
    newest = checkpoint.newest(run / "checkpoints", replay=False)
    with runfiles.opened(run) as folder:
        has_best = folder.has_folder("best")
    last = checkpoint.load_best(run) if has_best else newest
    found = {"untrained": snapshots.nearest(run, 0)}
    found |= {f"{n} %": snapshots.nearest(run, newest.step * n / 100) for n in (25, 50)}
    players, seen = list[Player](), set[int]()
    for label, loaded in found.items():
        if loaded is not None and loaded.step not in seen:  # a short run has few snapshots
            seen.add(loaded.step)
            players.append(_player(label, plan, loaded))
    if not players:
        raise BadRequest(f"{run} has no snapshots", "record it without --through-time")
    return [*players, _player("best" if has_best else "newest", plan, last)]


def _player(label: str, plan: Plan, found: checkpoint.Loaded) -> Player:
    policy = policies.policy_of(plan, found.weights, found.state, step=found.step, network=None)
    return Player(f"{label}, step {found.step:,}" if found.step else label, policy)


# --- The video ----------------------------------------------------------------------------------


def _film(
    players: list[Player], flags: RecordFlags, files: list[Path], folder: Path | None
) -> list[list[float]]:
    """The scores of every player's episodes. `folder`: the run's, if it gets the files."""
    within = ONE if len(players) == 1 else SEVERAL
    with ExitStack() as open_things:
        stages = [open_things.enter_context(closing(_stage(p.policy, flags))) for p in players]
        rate = stages[0].pictures_per_s
        longest = max(1, round(flags.seconds * rate))
        played = [
            _held(stage.moments(episodes=flags.episodes, longest=longest), round(HOLD_S * rate))
            for stage in stages
        ]
        scores: list[list[float]] = [[] for _ in players]
        film = open_things.enter_context(video.Film(files, rate, within=folder))
        for moments in _together(played):
            for own, (moment, fresh) in zip(scores, moments, strict=True):
                own += [moment.score] if fresh and moment.over else []
            film.add(video.beside(_panels(players, moments, within)))
    return scores


def _stage(policy: Policy, flags: RecordFlags) -> Stage:
    plan = policy.plan
    modes = envs.render_modes(plan.env)
    mode = "rgb_array" if "rgb_array" in modes else None
    epsilon = plan.evaluation.epsilon if flags.epsilon is None else flags.epsilon
    return Stage(policy, seed=flags.seed, epsilon=epsilon, render_mode=mode)


Seen = tuple[Moment, bool]  # a moment, and whether it is shown for the first time


def _held(moments: Iterator[Moment], pictures: int) -> Iterator[Seen]:
    for moment in moments:
        yield moment, True
        if moment.over:
            yield from [(moment, False)] * pictures


def _together(played: list[Iterator[Seen]]) -> Iterator[list[Seen]]:
    """One moment of every player at a time. A finished player keeps its last picture."""
    last = [next(one) for one in played]
    yield list(last)
    while True:
        fresh = [next(one, None) for one in played]
        if not any(fresh):
            return
        last = [new or (old[0], False) for new, old in zip(fresh, last, strict=True)]
        yield list(last)


def _panels(players: list[Player], moments: list[Seen], within: tuple[int, int]) -> list[Image]:
    panels = []
    for player, (moment, _) in zip(players, moments, strict=True):
        if moment.shown is None:
            raise BadRequest(
                f"{player.policy.spec.id} has no pictures", "give it the render mode rgb_array"
            )
        panels.append(video.panel(moment.shown, player.label, moment.score, within=within))
    return panels
