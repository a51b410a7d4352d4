"""One sentence on what limits a run's speed, and what would help."""

from __future__ import annotations

from collections.abc import Mapping

Seconds = Mapping[str, float]  # part of time -> seconds

ACTING, LEARNING, SHARING, WAITING = (
    ("env", "act"),
    ("sample", "gradient"),
    ("pull", "push"),
    "idle",
)
SELDOM = 0.05  # a smaller share of the time spent waiting does not matter


def bottleneck(
    split: Mapping[str, Seconds], *, updates: int, envs_per_worker: int, actors: int, alone: bool
) -> str:
    """`split`: the seconds of each role by part. `alone`: a single worker, which shares nothing."""
    if not updates:
        return "warm-up: nothing was learned yet; train for more steps"
    if "actor" in split:
        return _apart(split["actor"], split["learner"], actors)
    seconds = {part: sum(role.get(part, 0.0) for role in split.values()) for part in _parts(split)}
    if alone:  # push is the optimizer's step
        seconds = {
            **seconds,
            "gradient": _sum(seconds, ("gradient", *SHARING)),
            "pull": 0,
            "push": 0,
        }
    kinds = {
        "learner": _sum(seconds, LEARNING),
        "sharing": _sum(seconds, SHARING),
        "environment": _sum(seconds, ACTING),
        "waiting": seconds.get(WAITING, 0.0),
    }
    largest = max(kinds, key=lambda kind: kinds[kind])
    share = kinds[largest] / max(1e-9, sum(kinds.values()))
    advice = {
        "learner": "more environments will not help",
        "sharing": "try fewer workers or a larger batch, which share less often",
        "environment": f"try --envs-per-worker {2 * envs_per_worker}",
        "waiting": "workers wait for one another; try fewer workers, or more cores",
    }
    return f"{largest}-bound: {share:.0%} of the time; {advice[largest]}"


def _apart(actor: Seconds, learner: Seconds, actors: int) -> str:
    """Whether actors wait for learners or learners for actors, and why."""
    actors_wait, learners_wait = (_share(role, (WAITING,)) for role in (actor, learner))
    if max(actors_wait, learners_wait) < SELDOM:
        return (
            f"balanced: actors wait {actors_wait:.0%} and learners {learners_wait:.0%} of the "
            "time; more cores would help both"
        )
    if learners_wait > actors_wait:
        wait = f"learners wait {learners_wait:.0%} of the time"
        return f"actor-bound: {wait}; try --actors {2 * actors}"
    wait = f"actors wait {actors_wait:.0%} of the time"
    sharing = _share(learner, SHARING)
    if sharing > _share(learner, LEARNING):
        advice = "try fewer learners or a larger batch"
        return f"sharing-bound: {wait}, learners share {sharing:.0%} of theirs; {advice}"
    return f"learner-bound: {wait}; more actors will not help"


def _parts(split: Mapping[str, Seconds]) -> set[str]:
    return {part for role in split.values() for part in role}


def _sum(seconds: Seconds, parts: tuple[str, ...]) -> float:
    return sum(seconds.get(part, 0.0) for part in parts)


def _share(seconds: Seconds, parts: tuple[str, ...]) -> float:
    return _sum(seconds, parts) / max(1e-9, sum(seconds.values()))
