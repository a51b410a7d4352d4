"""While main evaluates, the others train: they are looked after, and what is kept was played."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import manyhands as mh
from manyhands.config import registry
from manyhands.runs import checkpoint, evaluate
from support.small_runs import FAULTY as SMALL

LONG_S = 60.0


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that takes its time where main plays it."""

    main = os.getpid()

    def step(self, action: Any) -> Any:
        if os.getpid() == self.main:
            time.sleep(0.01)
        return self.env.step(action)


def slow_for_main() -> Any:
    return Slow(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("role", ["shard", "worker"])
def test_a_worker_killed_in_an_evaluation_is_replaced_during_it(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = mh.Run(
        "cartpole", strategy="parameter_server", workers=2, steps=10**9, out=tmp_path / "run",
        **SMALL,
    )  # fmt: skip

    def pids() -> list[int]:
        return [row["pid"] for row in run.workers.process_table() if row["role"] == role]

    def until(condition: Any) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline
            assert run._evaluator.keep_playing()
            time.sleep(0.01)

    def play(*_: Any, **__: Any) -> Any:
        before = pids()
        os.kill(before[0], signal.SIGKILL)
        until(lambda: 0 not in pids() and pids() != before)
        now = run.workers.updates
        until(lambda: run.workers.updates > now + 50)
        return evaluate.Evaluation([1.0])

    for _ in run:
        if run.workers.updates > 50:
            monkeypatch.setattr(evaluate, "evaluate", play)
            run._evaluate()
            break
    assert run.summary["faults"]["restarts"] == 1
    assert run.summary["evaluation"]["mean"] == 1.0


def test_a_stop_is_heard_during_an_evaluation(tmp_path: Path) -> None:
    run = mh.Run(
        slow_for_main, steps=10**9, out=tmp_path / "run",
        evaluation={"period_steps": 200, "episodes": 100_000}, **SMALL,
    )  # fmt: skip
    asked = {"at_s": 0.0}
    keep_playing = run._evaluator.keep_playing

    def stop_soon() -> bool:
        if not asked["at_s"]:
            asked["at_s"] = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)
        return keep_playing()

    run._evaluator.keep_playing = stop_soon  # type: ignore[method-assign]
    run.finish()
    assert run.interrupted
    assert asked["at_s"]
    assert len(run.evaluate(episodes=2).scores) == 2, "it may still be asked to play"
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert not any("charts/evaluation_return" in row for row in rows)
    assert checkpoint.newest(run.path / "checkpoints").step >= 200


def test_the_weights_that_main_plays_with_are_rounded_again(tmp_path: Path) -> None:
    """In bfloat16 large layers keep rounded weights until they are told that these changed."""
    run = mh.Run("cartpole", strategy="lock", workers=2, steps=600, out=tmp_path / "run", **SMALL)
    told = list[int]()
    run.workers.model.changed = lambda: told.append(1)  # type: ignore[method-assign]
    with run.workers.newest():
        pass
    assert told
    run.finish()


@pytest.mark.parametrize("strategy", ["hogwild", "lock", "parameter_server"])
def test_the_best_that_is_kept_is_what_was_played(strategy: str, tmp_path: Path) -> None:
    run = mh.Run(
        "cartpole", strategy=strategy, workers=2, steps=10**9, out=tmp_path / "run", **SMALL
    )
    played, real = list[Any](), evaluate.evaluate

    def play(*given: Any, **more: Any) -> Any:
        played.append(run.workers.model.vector.clone())
        now, deadline = run.workers.updates, time.monotonic() + LONG_S
        while run.workers.updates < now + 100:  # others learn meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return real(*given, **{**more, "episodes": 1})

    for _ in run:
        if run.workers.updates < 50:
            continue
        steps = run.workers.agent_steps
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluate, "evaluate", play)
            run._evaluate()
        kept = checkpoint.load_best(run.path)
        run.workers.model.load(kept.weights)
        assert (run.workers.model.vector == played[0]).all()
        assert steps <= kept.step < run.workers.agent_steps
        break
    assert played


def test_a_long_foreign_error_message_costs_no_worker(
    tmp_path: Path,
) -> None:
    class Wordy(gymnasium.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == 50:
                raise OSError("模拟器不见了\x1b[2J" * 3000)
            return self.env.step(action)

    run = mh.train(
        lambda: Wordy(gymnasium.make("CartPole-v1")), strategy="hogwild", workers=2, steps=1000,
        out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    assert run.summary["faults"]["restarts"] == 0
    rows = [json.loads(line) for line in (run.path / "faults.jsonl").read_text().splitlines()]
    assert rows
    assert all("模拟器不见了" in row["cause"] for row in rows)
    assert all("\x1b" not in row["cause"] + row["detail"] for row in rows)


@pytest.mark.parametrize("strategy", registry.shared())
def test_workers_that_have_ended_can_still_be_evaluated(strategy: str, tmp_path: Path) -> None:
    run = mh.train(
        "cartpole", strategy=strategy, workers=2, steps=600, out=tmp_path / "run", **SMALL
    )
    kept = checkpoint.newest(run.path / "checkpoints").weights
    assert len(run.evaluate(episodes=3).scores) == 3
    assert all((run.workers.model.named()[name] == kept[name]).all() for name in kept)
