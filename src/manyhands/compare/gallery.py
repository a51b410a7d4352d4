"""Which figures a comparison has, and their captions."""

from __future__ import annotations

from manyhands.compare import bars
from manyhands.compare.curves import BY_STEPS, BY_TIME
from manyhands.compare.figures import (
    Figure,
    against_workers,
    scores_by_workers,
    scores_together,
)
from manyhands.compare.groups import Comparison

BOUND = "A hollow marker with an arrow is a bound: not all seeds were solved within the limit."
TO_SOLVE = {  # title, axis, caption
    "episodes_to_solve": (
        "Episodes to solve", "episodes", "Finished episodes of all workers.",
    ),
    "seconds_to_solve": (
        "Total time to solve", "seconds", "From the start of the run, process start included.",
    ),
    "seconds_per_episode": (
        "Average time per episode", "seconds", "Total time divided by all finished episodes.",
    ),
    "agent_steps_to_solve": (
        "Agent steps to solve", "agent steps", "Decisions of all workers: the experience it took.",
    ),
}  # fmt: skip


def figures(comparison: Comparison) -> list[Figure]:
    """The figures for which there are numbers."""
    if not any(group.ended for group in comparison.groups.values()):
        return []
    own = _solving(comparison) if comparison.is_solve else _throughput(comparison)
    return [*own, *_sharing(comparison)]


def _solving(comparison: Comparison) -> list[Figure]:
    made = [
        against_workers(
            comparison, name, title=title, axis=axis,
            caption=f"{about} {BOUND}" if name != "seconds_per_episode" else about,
        )
        for name, (title, axis, about) in TO_SOLVE.items()
        if comparison.have(name)
    ]  # fmt: skip
    made += _speed_ups(comparison, "solved")
    if any(len(result.curve.score) for result in comparison.results):
        made += [
            scores_by_workers(
                comparison, BY_TIME, name="score_by_workers",
                title="Average score over time, by number of workers",
            ),
            scores_together(
                comparison, BY_TIME, name="return_by_time", title="Return against wall-clock time"
            ),
            scores_together(
                comparison, BY_STEPS, name="return_by_steps", title="Return against agent steps"
            ),
        ]  # fmt: skip
    return made


def _throughput(comparison: Comparison) -> list[Figure]:
    texts = {
        "agent_steps_per_s": ("Serial against distributed: agent steps a second", "agent steps/s"),
        "updates_per_s": ("Updates a second", "updates/s"),
    }
    window = "Measured while every worker was running; process start is left out."
    made = [
        against_workers(comparison, name, title=title, axis=axis, caption=window)
        for name, (title, axis) in texts.items()
        if comparison.have(name)
    ]
    return [*made, *_speed_ups(comparison, "agent steps/s")]


def _speed_ups(comparison: Comparison, of: str) -> list[Figure]:
    if not comparison.have("speed_up"):
        return []
    over = "Over that algorithm's serial run, which the table of baselines names."
    meaning = "how many times sooner it was solved" if of == "solved" else f"in {of}"
    return [
        against_workers(
            comparison, "speed_up", title="Speed-up", axis="times", ideal=float,
            caption=f"Speed-up: {meaning}. {over}",
        ),
        against_workers(
            comparison, "efficiency", title="Parallel efficiency", axis="speed-up per worker",
            ideal=lambda _: 1.0, share=True, caption="Speed-up divided by the number of workers.",
        ),
    ]  # fmt: skip


def _sharing(comparison: Comparison) -> list[Figure]:
    made = []
    if comparison.have("sharing"):
        made.append(
            against_workers(
                comparison, "sharing", title="Cost of sharing", axis="share of the time",
                share=True, caption="Pull and push as a share of the learners' time.",
            )
        )  # fmt: skip
    if any(g.measures["staleness_p95"].value for g in comparison.have("staleness_p95")):
        made += [
            against_workers(
                comparison, name, title=f"Staleness, {kind}", axis="updates",
                caption="Updates applied between the computation of a gradient and its own update.",
            )
            for name, kind in (("staleness_mean", "mean"), ("staleness_p95", "95th percentile"))
        ]  # fmt: skip
    return [*made, bars.time_split(comparison), bars.compute_or_communicate(comparison)]
