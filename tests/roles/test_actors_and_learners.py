"""Actors apart from learners: paced, repeatable in process, alive after kill -9."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.backends.inprocess.late import MOST_READS
from manyhands.config import plans, registry
from manyhands.memory.storage.rings import Writer
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles import counters, jobs, making
from manyhands.roles.actor import Actor
from manyhands.roles.published import PublishedWeights
from manyhands.types import Array, BadRequest, Job, Keep, Rank
from support.small_runs import SHARED as SMALL
from support.small_runs import assert_equal, weights

cloudpickle.register_pickle_by_value(sys.modules[__name__])
APART: dict[str, Any] = {**SMALL, "actors": 2, "memory": {"capacity": 2000, "ahead_steps": 40}}


def owed(steps: int) -> int:
    return (steps - 100) // 2  # as SMALL has it


@pytest.mark.parametrize("backend", ["inprocess", "processes"])
@pytest.mark.parametrize("kind", ["replay", "prioritized"])
def test_one_learner_draws_what_the_actors_steps_pay_for(
    backend: str, kind: str, tmp_path: Path
) -> None:
    given = {**APART, "memory": {**APART["memory"], "kind": kind}}
    run = mh.train("cartpole", steps=2000, backend=backend, out=tmp_path / "run", **given)
    summary = json.loads((run.path / "summary.json").read_text())
    assert 2000 <= summary["agent_steps"] <= 2000 + 2 * 4
    late = 4 // 2 if backend == "processes" else 0  # the other's last step may come too late
    assert 0 <= owed(summary["agent_steps"]) - summary["updates"] <= late
    assert (summary["actors"], summary["learners"]) == (2, 1)
    assert set(summary["time_split"]) == {"actor", "learner"}
    assert summary["episodes"] > 10


def test_in_process_roles_repeat_bit_for_bit(tmp_path: Path) -> None:
    def train(name: str, seed: int) -> mh.Run:
        return mh.train(
            "cartpole", steps=900, backend="inprocess", seed=seed, out=tmp_path / name, **APART
        )

    one, same, other = train("one", 3), train("same", 3), train("other", 4)
    assert_equal(one, same)
    assert any((weights(one)[name] != weights(other)[name]).any() for name in weights(one))


@pytest.mark.parametrize("backend", ["inprocess", "processes"])
def test_rollouts_wait_in_queues_for_a_learner(backend: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "network": {"hidden": (16,)},
        "envs_per_worker": 4,
        "threads": 1,
        "quiet": True,
    }
    run = mh.train(
        "cartpole", algorithm="impala", actors=2, steps=3000, backend=backend,
        impala={"rollout_steps": 8}, evaluation={"period_steps": 0}, out=tmp_path / "run", **given,
    )  # fmt: skip
    assert 3000 <= run.summary["agent_steps"] <= 3000 + 2 * 4
    rollouts = run.summary["agent_steps"] // (8 * 4)
    assert rollouts - 6 <= run.summary["updates"] <= rollouts  # two of each may wait, one is begun


@pytest.mark.parametrize("strategy", ["lock", "hogwild", "parameter_server"])
def test_learners_share_the_updates(strategy: str, tmp_path: Path) -> None:
    given = {**APART, "memory": {**APART["memory"], "scope": "global"}}
    run = mh.train(
        "cartpole", steps=2000, strategy=strategy, learners=2, out=tmp_path / "run", **given
    )
    due = owed(run.summary["agent_steps"])
    assert due - 2 <= run.summary["updates"] <= due
    counters = run.workers.counters.rows()
    assert (counters[2:, 1] > due / 4).all()  # both learned


@pytest.mark.parametrize("strategy", ["lock", "allreduce"])
def test_learners_with_own_memories_draw_for_their_own_actors(
    strategy: str, tmp_path: Path
) -> None:
    given = {**APART, "actors": 3, "learners": 2, "strategy": strategy}
    run = mh.train("cartpole", steps=2000, out=tmp_path / "run", **given)
    counters = run.workers.counters.rows()
    steps, updates = counters[:3, 0], counters[3:, 1]
    spent = given["dqn"]["steps_per_update"]
    due = [max(0, sum(steps[:2]) - 66) // spent, max(0, steps[2] - 33) // spent]  # 100 to warm up
    late = 2 * 4 // spent  # the last steps of two actors may come when the learners have left
    assert all(-1 <= owed - made <= late for made, owed in zip(updates, due, strict=True))


@pytest.mark.parametrize(("scope", "lanes"), [("local", [8, 4]), ("global", [12, 12])])
def test_learners_draw_from_their_own_actors_or_from_all(
    scope: str, lanes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = jobs.LearnerJob._memory
    drawn: list[Any] = []

    def watched(*args: Any) -> Any:
        drawn.append(made(*args))
        return drawn[-1]

    monkeypatch.setattr(jobs.LearnerJob, "_memory", watched)
    given = {**APART, "actors": 3, "memory": {**APART["memory"], "scope": scope}}
    mh.train(
        "cartpole", strategy="lock", backend="inprocess", learners=2, steps=400,
        out=tmp_path / "run", **given,
    )  # fmt: skip
    assert sorted((memory.drawn.spec.lanes for memory in drawn), reverse=True) == lanes


@pytest.mark.parametrize(("recipe", "every"), [("apex", 1), ("apex", 40), ("impala", 1)])
def test_the_age_of_what_actors_act_with_is_counted(
    recipe: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learner's updates at a step, minus those in the weights pulled last."""
    learners: list[Any] = []
    ages, contained = list[int](), {"newest": 0, "pulled": 0}
    make, publish = jobs.LearnerJob._make, PublishedWeights.publish
    pull, act = PublishedWeights.pull, Actor.step

    def noted_make(self: Any, *args: Any) -> Any:
        learners.append(make(self, *args))
        return learners[0]

    def noted_publish(self: PublishedWeights, *args: Any) -> None:
        publish(self, *args)
        contained["newest"] = learners[0].updates

    def noted_pull(self: PublishedWeights, model: Any) -> bool:
        new = pull(self, model)
        contained["pulled"] = contained["newest"] if new else contained["pulled"]
        return new

    def noted_act(self: Actor, *args: Any) -> None:
        ages.append((learners[0].updates if learners else 0) - contained["pulled"])
        act(self, *args)

    for kind, name, noted in (
        (jobs.LearnerJob, "_make", noted_make), (PublishedWeights, "publish", noted_publish),
        (PublishedWeights, "pull", noted_pull), (Actor, "step", noted_act),
    ):  # fmt: skip
        monkeypatch.setattr(kind, name, noted)
    own = {"impala": {"rollout_steps": 8}} if recipe == "impala" else {"dqn": SMALL["dqn"]}
    run = mh.train(
        "cartpole", recipe=recipe, backend="inprocess", actors=1, envs_per_worker=2, steps=1500,
        threads=1, publish_every=every, quiet=True, out=tmp_path / "run", **own,
    )  # fmt: skip
    told = run.summary["staleness"]
    assert told["mean"] == told["dropped"] == 0, "gradients are not stale with one learner"
    late = MOST_READS  # another process' counters and weights, as this backend has them
    assert told["actors"]["mean"] == pytest.approx(np.mean(ages), abs=late)
    assert told["actors"]["p95"] == pytest.approx(np.percentile(ages, 95), abs=late)
    if every > 1:
        assert told["actors"]["mean"] > 10
    rows = [json.loads(row) for row in (run.path / "metrics.jsonl").read_text().splitlines()]
    newest = [row for row in rows if "charts/actors_staleness_mean" in row][-1]
    assert newest["charts/actors_staleness_p95"] <= told["actors"]["p95"] + late
    more = mh.resume(run.path, steps=1510, quiet=True).summary["staleness"]["actors"]
    assert more["mean"] == pytest.approx(told["actors"]["mean"], abs=0.5), "counts are kept"


@pytest.mark.usefixtures("_looks_often")
@pytest.mark.parametrize("role", ["actor", "learner"])
def test_a_killed_process_is_replaced(role: str, tmp_path: Path) -> None:
    run = mh.Run("cartpole", steps=12_000, out=tmp_path / "run", **APART)
    killed = 0
    for _ in run:
        process_table = [
            row for row in run.workers.process_table() if row["role"] == role and row["pid"]
        ]
        if not killed and process_table and run.workers.updates > 100:
            killed = process_table[0]["pid"]
            os.kill(killed, signal.SIGKILL)
    assert killed
    summary = run.summary
    assert summary["faults"]["restarts"] == 1
    assert 12_000 <= summary["agent_steps"] <= 12_000 + 2 * 4
    assert summary["updates"] >= 0.9 * owed(12_000)
    assert all(np.isfinite(array).all() for array in weights(run).values())


def test_a_learner_that_starts_late_learns_what_is_due(
    tmp_path: Path,
) -> None:
    on_time = jobs.LearnerJob.__call__

    def late(self: jobs.LearnerJob, rank: Rank) -> Iterator[Keep | None]:
        while self.total(counters.STEPS) < self.step_limit():
            yield None
        yield from on_time(self, rank)

    given = {**SMALL, "actors": 2, "memory": {"capacity": 2000, "ahead_steps": 2000}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.LearnerJob, "__call__", late)
        run = mh.train("cartpole", steps=1000, backend="inprocess", out=tmp_path / "run", **given)
    assert owed(1000) <= run.summary["updates"] <= owed(1000 + 2 * 4)


def rows_of(run: mh.Run) -> Array:
    """Rows written to each lane."""
    assert isinstance(run.workers.shared_lanes, SharedLanes)
    return run.workers.shared_lanes.written()


@pytest.mark.parametrize("options", [{"actors": 2}, {"workers": 2, "strategy": "hogwild"}])
def test_resumed_actors_and_learners_find_their_memory(
    options: dict[str, Any], tmp_path: Path
) -> None:
    given = {**SMALL, "memory": {"capacity": 2000}, **options}
    first = mh.train("cartpole", steps=800, out=tmp_path / "run", **given)
    kept = rows_of(first)
    more = mh.Run.resumed(first.path, steps=1600)
    np.testing.assert_array_equal(rows_of(more), kept)
    more.finish()
    assert more.summary["updates"] >= 0.95 * owed(1600)
    assert not any("no replay" in note for note in more.progress.notes)


def test_global_memory_is_drawn_from_by_all(tmp_path: Path) -> None:
    given = {**SMALL, "memory": {"capacity": 2000, "scope": "global"}}
    run = mh.train(
        "cartpole", strategy="hogwild", workers=2, steps=6000, out=tmp_path / "run", **given
    )
    assert run.summary["updates"] > 2400
    assert (rows_of(run) > 0).all()


# --- Refusals and words ---------------------------------------------------------------------------


def plan(**run: Any) -> plans.Plan:
    sections: dict[str, Any] = {
        name: run.pop(name) for name in ("memory", "dqn", "hogwild") if name in run
    }
    return plans.resolve("cartpole", {"run": run, **sections})


def test_settings_that_would_deadlock_are_refused() -> None:
    with pytest.raises(BadRequest, match="wait for ever"):
        plan(actors=2, memory={"ahead_steps": 3}, dqn={"steps_per_update": 4})
    with pytest.raises(BadRequest, match="wait for ever"):
        plan(actors=2, learners=3, strategy="lock", memory={"ahead_steps": 11, "scope": "global"})
    assert plan(
        actors=2, learners=3, strategy="lock", memory={"ahead_steps": 12, "scope": "global"}
    )
    assert plan(actors=3, learners=3, strategy="lock", memory={"ahead_steps": 4})


def test_the_tightest_pace_that_is_allowed_does_not_stall(tmp_path: Path) -> None:
    given = {**APART, "memory": {"capacity": 2000, "ahead_steps": 4}}
    run = mh.train(
        "cartpole", steps=600, learners=2, strategy="lock", out=tmp_path / "run", **given
    )
    assert run.summary["agent_steps"] >= 600


def test_every_learner_with_a_memory_of_its_own_needs_an_actor(tmp_path: Path) -> None:
    given = {**APART, "learners": 3, "strategy": "lock", "out": tmp_path / "run"}
    with pytest.raises(BadRequest, match="each learner needs an actor"):
        mh.train("cartpole", steps=100, **given)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"learners": 2, "strategy": "lock"}, "no process would act"),
        ({"learners": 2}, "no process would act"),
        ({"learners": 1}, "no process would act"),
        ({"recipe": "hogwild", "hogwild": {"sync_every": 4}}, "no copy"),
        ({"recipe": "hogwild", "workers": 300}, "more than the 255"),
        ({"actors": 250, "learners": 6, "strategy": "lock"}, "256 processes"),
        ({"learners": 2, "actors": 2}, "serial does not"),
        ({"workers": 2, "actors": 2}, "were both given"),
    ],
)
def test_roles_that_make_no_sense_are_refused(run: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        plan(**run)


def test_an_on_policy_algorithm_cannot_have_separate_actors(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot use"):
        mh.train("cartpole", recipe="paac", actors=2, steps=100, out=tmp_path / "run", quiet=True)


def test_actors_take_the_place_of_a_recipes_workers() -> None:
    made = plan(recipe="hogwild", actors=3, learners=2).top
    assert (made.actors, made.learners, made.workers) == (3, 2, 1)


def test_the_queue_has_room_for_a_whole_batch_of_rollouts(tmp_path: Path) -> None:
    run = mh.train(
        "cartpole", recipe="impala", actors=2, steps=4000, out=tmp_path / "run", quiet=True,
        impala={"batch_rollouts": 40, "rollout_steps": 5}, network={"hidden": (8,)}, threads=1,
    )  # fmt: skip
    assert run.summary["updates"] > 0


def test_workers_are_actors_where_a_recipe_has_roles() -> None:
    made = plan(recipe="distributed-dqn", workers=3).top
    assert (made.actors, made.learners, made.workers) == (3, 1, 1)


# --- The ladder -----------------------------------------------------------------------------------


def test_the_least_exploring_environments_are_judged() -> None:
    made = plan(envs_per_worker=3, dqn={"epsilon_spread": 7.0})
    powers = [making.ladder(made, member, 2) for member in (0, 1)]
    np.testing.assert_allclose(np.concatenate([p for p, _ in powers]), 1 + 7 * np.arange(6) / 5)
    assert [judged.tolist() for _, judged in powers] == [[False] * 3, [True] * 3]
    alone, judged = making.ladder(made, 0, 1)
    np.testing.assert_allclose(alone, [1, 4.5, 8])
    assert judged.tolist() == [False, False, True]
    single = replace(made, top=replace(made.top, envs_per_worker=1))
    assert making.ladder(single, 0, 1)[0].tolist() == [4.5]
    powers_of_all, all_judged = making.ladder(plan(envs_per_worker=2), 1, 2)
    assert powers_of_all.tolist() == [1, 1]
    assert all_judged.all()


# --- Weights to actors ----------------------------------------------------------------------------


ENOUGH = 50


class Holder:
    def __init__(self, size: int) -> None:
        self.vector = torch.full((size,), -1.0)


def test_what_is_pulled_is_never_half_of_one_and_half_of_another() -> None:
    size = 200_000
    with closing(registry.load("backends", "processes").make(0)) as backend:
        published = PublishedWeights(backend, torch.zeros(size))
        seen = backend.allocate((1,), np.dtype(np.int64))

        def write(_: Rank) -> Iterator[None]:
            number = 0
            while seen[0] < ENOUGH:
                number += 1
                published.publish(torch.full((size,), float(number)))
                yield

        def read(_: Rank) -> Iterator[None]:
            model: Any = Holder(size)
            newest = -1.0
            while seen[0] < ENOUGH:
                if published.pull(model):
                    first = float(model.vector[0])
                    assert bool((model.vector == first).all())
                    assert first >= newest
                    newest = first
                    seen[0] += 1
                yield

        faults = [fault for fault in backend.run([Job(write), Job(read)]) if fault]
        assert not faults
        assert seen[0] == ENOUGH


def test_a_rollout_is_made_with_the_weights_of_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | str] = []
    pull, extend = PublishedWeights.pull, Writer.extend

    def noted_pull(self: PublishedWeights, model: Any) -> bool:
        seen.append("pull")
        return pull(self, model)

    def noted_extend(self: Writer, rows: Any) -> None:
        seen.append(self.taken)
        extend(self, rows)

    monkeypatch.setattr(PublishedWeights, "pull", noted_pull)
    monkeypatch.setattr(Writer, "extend", noted_extend)
    mh.train(
        "cartpole", recipe="impala", backend="inprocess", actors=1, envs_per_worker=2, threads=1,
        impala={"rollout_steps": 4}, steps=40, out=tmp_path / "run",
    )  # fmt: skip
    assert seen == ["pull", 0, 1, 2, 3] * 5


def test_a_pull_without_news_does_nothing() -> None:
    backend = registry.load("backends", "inprocess").make(0)
    published, model = PublishedWeights(backend, torch.arange(3.0)), Holder(3)
    assert published.pull(model)  # type: ignore[arg-type]
    assert model.vector.tolist() == [0, 1, 2]
    assert not published.pull(model)  # type: ignore[arg-type]
    published.publish(torch.ones(3))
    assert published.pull(model)  # type: ignore[arg-type]
    assert model.vector.tolist() == [1, 1, 1]


def test_what_one_reader_has_seen_is_still_new_to_others() -> None:
    backend = registry.load("backends", "inprocess").make(0)
    published = PublishedWeights(backend, torch.arange(3.0))
    readers, models = [published.reader(), published.reader()], [Holder(3), Holder(3)]
    for number in (1.0, 2.0):
        published.publish(torch.full((3,), number))
        for reader, model in zip(readers, models, strict=True):
            assert reader.pull(model)  # type: ignore[arg-type]
            assert not reader.pull(model)  # type: ignore[arg-type]
            assert model.vector.eq(number).all()


@pytest.mark.usefixtures("_looks_often")
def test_a_killed_synchronous_learner_does_not_stall_the_rest(tmp_path: Path) -> None:
    """Its replacement begins where the other is. The actors of both continued with that one."""
    given = {**APART, "memory": {"capacity": 2000, "ahead_steps": 40, "scope": "global"}}
    run = mh.Run(
        "cartpole", strategy="allreduce", learners=2, steps=6000, out=tmp_path / "run", **given
    )
    killed = False
    for _ in run:
        drawn = run.workers.counters.rows()[2:, counters.DRAWN]
        if not killed and drawn.min() > 100:
            killed = True
            pids = [row["pid"] for row in run.workers.process_table() if row["role"] == "learner"]
            os.kill(pids[1], signal.SIGKILL)
    assert killed
    assert run.summary["faults"]["restarts"] == 1
    assert 6000 <= run.summary["agent_steps"] <= 6000 + 2 * 4
    again = mh.resume(run.path, steps=8000, quiet=True)
    assert again.summary["agent_steps"] >= 8000
