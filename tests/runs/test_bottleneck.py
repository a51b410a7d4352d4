"""The sentence about a run's time agrees with the figures it is made of."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.runs.bottleneck import bottleneck

OTHER = {"other": 50.0}  # starting and leaving says nothing about training


def told(split: dict[str, dict[str, float]], **given: Any) -> str:
    facts = {"updates": 100, "envs_per_worker": 4, "actors": 0, "alone": False, **given}
    return bottleneck(split, **facts)


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        # As a run of the recipe with synchronous learners and two workers had it.
        ({"env": 3.0, "act": 2.0, "gradient": 4.7, "push": 19.3}, "sharing-bound: 67% of the time"),
        ({"env": 3.0, "gradient": 9.0, "sample": 6.0, "push": 2.0}, "learner-bound: 75%"),
        (
            {"env": 3.0, "act": 7.0, "gradient": 5.0, "pull": 4.0, "push": 1.0},
            "environment-bound: 50%",
        ),
        ({"env": 1.0, "gradient": 2.0, "pull": 1.0, "idle": 6.0}, "waiting-bound: 60%"),
        ({"env": 1.0, "gradient": 4.0, "pull": 5.0, "idle": 0.0}, "sharing-bound: 50%"),
    ],
)
def test_the_largest_cost_of_workers_is_named(seconds: dict[str, float], sentence: str) -> None:
    assert told({"worker": {**seconds, **OTHER}}).startswith(sentence)


def test_one_worker_shares_with_nobody_so_its_push_is_learning() -> None:
    split = {"worker": {"env": 5.0, "gradient": 4.0, "push": 6.0}}
    assert told(split, alone=True).startswith("learner-bound: 67%")
    assert told(split).startswith("sharing-bound: 40%")


def test_more_environments_are_advised_where_they_are_the_cost() -> None:
    assert "--envs-per-worker 8" in told({"worker": {"env": 5.0, "gradient": 1.0}})


def test_nothing_learned_is_warm_up_whatever_the_split() -> None:
    split = {"worker": {"env": 5.0, "gradient": 6.0}}
    assert told(split, updates=0).startswith("warm-up: nothing was learned")


@pytest.mark.parametrize(
    ("actor", "learner", "sentence"),
    [
        (
            {"env": 4.0, "idle": 6.0},
            {"gradient": 9.0, "idle": 1.0},
            "learner-bound: actors wait 60%",
        ),
        (
            {"env": 9.0, "idle": 1.0},
            {"gradient": 2.0, "idle": 8.0},
            "actor-bound: learners wait 80%",
        ),
        (
            {"env": 4.0, "idle": 6.0},
            {"gradient": 2.0, "push": 8.0},
            "sharing-bound: actors wait 60%",
        ),
        ({"env": 9.9, "idle": 0.1}, {"gradient": 9.8, "idle": 0.2}, "balanced: actors wait 1%"),
    ],
)
def test_the_bottleneck_is_the_role_the_other_waits_for(
    actor: dict[str, float], learner: dict[str, float], sentence: str
) -> None:
    assert told({"actor": actor, "learner": learner}, actors=3).startswith(sentence)
